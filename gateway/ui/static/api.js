// Calls to the gateway that serves this page. The key, where there is one, stays in this tab and goes out as a header.

const KEY = "paceline-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: value => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** What went wrong, in words. `status` is 0 when nobody answered. */
export class Problem extends Error {
  constructor(message, { status = 0, code = "", fix = "", differs = [] } = {}) {
    super(message);
    Object.assign(this, { status, code, fix, differs });
  }
}

let onRefused = () => {};

/** Call `listener` with the problem whenever a key is missing or does not do. */
export const whenRefused = listener => { onRefused = listener; };

/** Return the response for a path such as `admin/fleet`. Throws `Problem`, or `AbortError` when `signal` says so. */
export async function ask(path, { method = "GET", body, params = {}, headers = {}, signal } = {}) {
  const url = new URL(`../${path}`, document.baseURI);
  url.hash = "";
  for (const [name, value] of Object.entries(params))
    for (const each of [value].flat()) if (each !== "" && each !== undefined) url.searchParams.append(name, each);
  const sent = { ...headers };
  if (body !== undefined) sent["content-type"] = "application/json";
  if (key.get()) sent.authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(url, { method, headers: sent, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("Paceline does not answer. It may have been stopped, or this machine has lost its way to it.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

export const json = async (path, options) => (await ask(path, options)).json();

async function refusal(response) {
  const said = await response.json().catch(() => ({}));
  const { message = `The answer was ${response.status}.`, code, fix, differs } = said.error ?? {};
  const problem = new Problem(message, { status: response.status, code, fix, differs });
  if (response.status === 401 || problem.code === "admin_only") onRefused(problem);
  return problem;
}

/** Yield the data of each server-sent event of a response. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").filter(line => line.startsWith("data:")).map(line => line.slice(5).trimStart());
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
