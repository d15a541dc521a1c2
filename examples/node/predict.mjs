// node predict.mjs BUNDLE [OPTIONS] < texts: reads one text a line, writes one answer a line.
import { createInterface } from "node:readline";
import { open } from "./bundle.mjs";

const [path, options = "{}"] = process.argv.slice(2);
const bundle = await open(path);
const answer = async (texts) => {
  for (const result of await bundle.answers(texts, JSON.parse(options))) console.log(JSON.stringify(result));
};
let texts = [];
for await (const line of createInterface({ input: process.stdin })) {
  texts.push(line);
  if (texts.length === 32) await answer(texts.splice(0));
}
await answer(texts);
