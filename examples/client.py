"""Asks a running Paceline with the OpenAI client and prints who answered, and why."""

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:7223/v1", api_key="unused")
model = client.models.list().data[0].id
response = client.chat.completions.with_raw_response.create(
    model=model, messages=[{"role": "user", "content": "Say hello."}], max_tokens=32
)
answer = response.parse()
print(answer.choices[0].message.content)
print(f"{response.headers['x-paceline-deployment']}: {response.headers['x-paceline-reason']}")
