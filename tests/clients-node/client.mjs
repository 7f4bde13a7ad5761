// What a user of the official client writes; prints one JSON object that the test reads.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none-is-needed", maxRetries: 2, timeout: 20000 });
const messages = [{ role: "user", content: "Say hello." }];
const said = {};

said.models = [];
for await (const model of client.models.list()) said.models.push(model.id);

const whole = await client.chat.completions.create({ model: "m", messages, seed: 7 });
said.whole = { text: whole.choices[0].message.content, model: whole.model, tokens: whole.usage.completion_tokens };

said.stream = "";
const stream = await client.chat.completions.create({
  model: "m@vllm",
  messages,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  said.stream += chunk.choices[0]?.delta?.content ?? "";
  if (chunk.usage) said.streamTokens = chunk.usage.completion_tokens;
}

const tools = [{ type: "function", function: { name: "look", parameters: { type: "object", properties: {} } } }];
const runner = client.chat.completions.stream({ model: "m", messages, tools });
const final = await runner.finalChatCompletion();
said.tool = final.choices[0].message.tool_calls[0].function;
said.toolFinish = final.choices[0].finish_reason;

const { data, response } = await client.chat.completions.create({ model: "m", messages }).withResponse();
said.deployment = response.headers.get("x-paceline-deployment");
said.whole2 = data.choices[0].message.content;

async function refusal(promise) {
  try {
    await promise;
  } catch (error) {
    return { kind: error.constructor.name, status: error.status ?? null, code: error.code ?? null, message: error.message };
  }
  return null;
}

said.unknown = await refusal(client.chat.completions.create({ model: "mm", messages }));
said.wrong = await refusal(client.chat.completions.create({ model: "m", messages, n: 0 }));
said.cut = await refusal(
  (async () => {
    const cut = await client.chat.completions.create({ model: "m", messages, stream: true });
    for await (const _ of cut);
  })(),
);

const leaving = await client.chat.completions.create({ model: "m", messages, stream: true });
for await (const chunk of leaving) {
  if (chunk.choices[0]?.delta?.content) break; // the client aborts the request when the loop is left
}

console.log(JSON.stringify(said));
