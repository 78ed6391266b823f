// SPDX-License-Identifier: MIT OR Apache-2.0
// One question, one worker: the command runs once, and the memory it took goes with its worker.

import { run } from "./wasi";

export interface Question {
  module: WebAssembly.Module;
  file: File;
  /** The name of the file in `words`. */
  name: string;
  words: string[];
}

export interface Answer {
  code: number;
  stdout: string;
  stderr: string;
  memory: number;
  milliseconds: number;
}

export type Message = { percent: number } | { answer: Answer } | { failure: string };

/** Percentages as terminals take them, which the command writes among its words. */
const PROGRESS = /\x1b\]9;4;1;(\d+)\x07/g;

/** A worker's own file reader, which TypeScript's types of a page do not have. */
declare class FileReaderSync {
  readAsArrayBuffer(part: Blob): ArrayBuffer;
}

const scope = self as unknown as { onmessage: (event: MessageEvent<Question>) => void; postMessage(message: Message): void };

scope.onmessage = ({ data }) => {
  const reader = new FileReaderSync();
  const input = {
    size: data.file.size,
    read: (begin: number, end: number) => new Uint8Array(reader.readAsArrayBuffer(data.file.slice(begin, end))),
  };
  const begun = performance.now();
  let said = "";
  try {
    const ended = run(data.module, data.words, data.name, input, (text) => {
      said += text;
      const last = [...said.matchAll(PROGRESS)].at(-1);
      if (last) scope.postMessage({ percent: Number(last[1]) });
      said = said.replace(PROGRESS, "");
    });
    const answer: Answer = {
      code: ended.code,
      stdout: ended.stdout,
      stderr: ended.stderr.replace(PROGRESS, ""),
      memory: ended.memory,
      milliseconds: performance.now() - begun,
    };
    scope.postMessage({ answer });
  } catch (error) {
    scope.postMessage({ failure: said.trim() || String(error) });
  }
};
