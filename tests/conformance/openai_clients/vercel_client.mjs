// Vercel's AI SDK, by chat completions and by responses.
//
// Node reads this from its standard input, so it finds the packages in the folder in which it runs.

import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, ...names] = process.argv.slice(2);
const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const model = provider.chat("chat");
const Person = z.object({ name: z.string(), age: z.number().int() });
const asked = {
  prompt: "How is the weather?",
  stopWhen: stepCountIs(2),
  tools: {
    get_weather: tool({
      description: "The weather in a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: ({ city }) => `21 degrees in ${city}`,
    }),
  },
};

async function joined(result) {
  let text = "";
  for await (const part of result.textStream) text += part;
  return text;
}

async function tools() {
  return (await generateText({ model, ...asked })).text === "It is 21 degrees in Paris.";
}

async function structured() {
  const { output } = await generateText({ model, prompt: "Extract: Ada is 36.", output: Output.object({ schema: Person }) });
  return output.name === "Ada" && output.age === 36;
}

async function stream() {
  return (await joined(streamText({ model, prompt: "How is it?" }))) === "Hello there.";
}

async function stream_tools() {
  return (await joined(streamText({ model, ...asked }))) === "It is 21 degrees in Paris.";
}

async function responses() {
  const model = provider.responses("chat");
  const whole = (await generateText({ model, ...asked })).text;
  return whole === (await joined(streamText({ model, ...asked }))) && whole === "It is 21 degrees in Paris.";
}

const functions = { tools, structured, stream, stream_tools, responses };
const shown = {};
for (const name of names) {
  try {
    shown[name] = (await functions[name]()) ? "" : "The client did not get what the script says.";
  } catch (error) {
    shown[name] = String(error.stack);
  }
}
console.log(JSON.stringify(shown));
