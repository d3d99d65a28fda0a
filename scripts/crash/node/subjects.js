// Node.js libraries that save a file, as subjects of crash tests: node subjects.js KIND setup|run|check
//
// setup saves text 0, run texts 1 to 3 and says "done N" after each; check demands one of them, whole,
// and none that is older than the last one promised.

import assert from "node:assert";
import { readFileSync, writeFileSync } from "node:fs";
import { cwd, argv, env } from "node:process";

const ROUNDS = 3;
const text = (number) => String(number).repeat(5000);
const parsed = () => JSON.parse(readFileSync("file.json", "utf8")).text;

const savers = {
  fs: async () => ({
    save: (value) => writeFileSync("file.json", JSON.stringify({ text: value })),
    load: parsed,
  }),
  "write-file-atomic": async () => {
    const { default: write } = await import("write-file-atomic");
    return { save: (value) => write("file.json", JSON.stringify({ text: value })), load: parsed };
  },
  atomically: async () => {
    const { writeFile } = await import("atomically");
    return { save: (value) => writeFile("file.json", JSON.stringify({ text: value })), load: parsed };
  },
  conf: async () => {
    const { default: Conf } = await import("conf");
    const options = { cwd: cwd(), configName: "file", projectName: "crash" };
    return {
      save: (value) => new Conf(options).set("text", value),
      load: () => new Conf(options).get("text"),
    };
  },
  lowdb: async () => {
    const { JSONFilePreset } = await import("lowdb/node");
    return {
      save: async (value) => {
        const db = await JSONFilePreset("file.json", {});
        db.data.text = value;
        await db.write();
      },
      load: async () => (await JSONFilePreset("file.json", {})).data.text,
    };
  },
};

const [kind, action] = argv.slice(2);
const saver = await savers[kind]();
if (action === "setup") {
  await saver.save(text(0));
} else if (action === "run") {
  for (let number = 1; number <= ROUNDS; number++) {
    await saver.save(text(number));
    console.log("done", number);
  }
} else {
  const lines = readFileSync(env.WEFT_PROMISES, "utf8").trim().split("\n");
  const promised = Number(lines.at(-1).split(" ").at(-1));
  const found = await saver.load();
  const whole = [0, 1, 2, 3].filter((number) => number >= promised).map(text);
  assert(whole.includes(found), `${found?.slice(0, 10)} is none of the texts saved`);
}
