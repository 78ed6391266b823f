// SPDX-License-Identifier: MIT OR Apache-2.0
// The system under the command: the functions of WASI (preview 1) that it calls, over files in memory and one file of the
// user, which is read in pieces when the command reads it. There is no network and no access to the disk behind it.

/** A file that the user chose. */
export interface Input {
  readonly size: number;
  /** Bytes from `begin` up to `end`. */
  read(begin: number, end: number): Uint8Array<ArrayBuffer>;
}

interface Node {
  readonly size: number;
  read(at: number, into: Uint8Array): number;
  write(at: number, bytes: Uint8Array): void;
  resize(size: number): void;
}

/** Read ahead of the command: a call of the browser's file reader costs more than a copy. */
const AHEAD = 4 << 20;

/** The user's file, which cannot be changed. */
class InputNode implements Node {
  #begin = 0;
  #piece = new Uint8Array(0);
  constructor(readonly input: Input) {}
  get size(): number {
    return this.input.size;
  }
  read(at: number, into: Uint8Array): number {
    if (at >= this.size) return 0;
    if (at < this.#begin || at >= this.#begin + this.#piece.length) {
      this.#begin = at;
      this.#piece = this.input.read(at, Math.min(this.size, at + AHEAD));
    }
    const from = at - this.#begin;
    const part = this.#piece.subarray(from, from + into.length);
    into.set(part);
    return part.length;
  }
  write(): void {
    throw new Refused(ERRNO.rofs);
  }
  resize(): void {
    throw new Refused(ERRNO.rofs);
  }
}

/** A file in memory. */
class MemoryNode implements Node {
  #bytes = new Uint8Array(1 << 16);
  size = 0;
  read(at: number, into: Uint8Array): number {
    const part = this.#bytes.subarray(at, Math.min(this.size, at + into.length));
    into.set(part);
    return part.length;
  }
  write(at: number, bytes: Uint8Array): void {
    this.resize(Math.max(this.size, at + bytes.length));
    this.#bytes.set(bytes, at);
  }
  resize(size: number): void {
    if (size > this.#bytes.length) {
      const larger = new Uint8Array(Math.max(size, this.#bytes.length * 2));
      larger.set(this.#bytes.subarray(0, this.size));
      this.#bytes = larger;
    }
    this.size = size;
  }
}

/** The numbers of errors that are returned here. */
const ERRNO = { badf: 8, exist: 20, inval: 28, noent: 44, nosys: 52, notdir: 54, rofs: 69, spipe: 70 } as const;
const TYPE = { character: 2, directory: 3, file: 4 } as const;
const OPEN = { create: 1, exclusive: 4, truncate: 8 } as const;
const APPEND = 1;

class Refused extends Error {
  constructor(readonly code: number) {
    super(`error ${code}`);
  }
}

/** Ends the command from inside. */
class Exit extends Error {
  constructor(readonly code: number) {
    super(`exit code ${code}`);
  }
}

interface Open {
  node: Node;
  at: number;
  append: boolean;
}

export interface Ended {
  code: number;
  stdout: string;
  stderr: string;
  /** Bytes of its memory, which never shrinks. */
  memory: number;
}

const ROOT = 3;
const FOLDERS = ["", "tmp"];

/** Runs the command to its end. `show` is called with what it writes to stderr. */
export function run(module: WebAssembly.Module, words: string[], name: string, input: Input, show: (text: string) => void): Ended {
  const encoder = new TextEncoder();
  const decoder = new TextDecoder();
  const files = new Map<string, Node>([[name, new InputNode(input)]]);
  const open = new Map<number, Open>();
  const output: Uint8Array[] = [];
  let errors = "";
  let memory: WebAssembly.Memory | null = null;

  const bytesAt = (at: number, length: number): Uint8Array => new Uint8Array((memory as WebAssembly.Memory).buffer, at, length);
  const view = (): DataView => new DataView((memory as WebAssembly.Memory).buffer);
  const pathAt = (at: number, length: number): string => decoder.decode(bytesAt(at, length).slice()).split("/").filter((part) => part !== "" && part !== ".").join("/");
  const opened = (fd: number): Open => {
    const found = open.get(fd);
    if (!found) throw new Refused(fd <= ROOT ? ERRNO.spipe : ERRNO.badf);
    return found;
  };
  /** The pieces of memory that a call reads from or writes to. */
  function* pieces(at: number, count: number): Generator<Uint8Array> {
    for (let number = 0; number < count; number += 1) {
      const piece = at + 8 * number;
      yield bytesAt(view().getUint32(piece, true), view().getUint32(piece + 4, true));
    }
  }
  /** Strings as C has them: pointers, and the texts behind them. */
  const strings = (all: string[]): Uint8Array[] => all.map((text) => encoder.encode(`${text}\0`));
  const sizes = (all: Uint8Array[]) => (count: number, length: number): number => {
    view().setUint32(count, all.length, true);
    view().setUint32(length, all.reduce((sum, text) => sum + text.length, 0), true);
    return 0;
  };
  const put = (all: Uint8Array[]) => (pointers: number, texts: number): number => {
    all.forEach((text, number) => {
      view().setUint32(pointers + 4 * number, texts, true);
      bytesAt(texts, text.length).set(text);
      texts += text.length;
    });
    return 0;
  };
  const stat = (at: number, type: number, size: number): number => {
    bytesAt(at, 64).fill(0);
    view().setUint8(at + 16, type);
    view().setBigUint64(at + 24, 1n, true);
    view().setBigUint64(at + 32, BigInt(size), true);
    return 0;
  };
  const write = (fd: number, from: number, count: number): number => {
    let sum = 0;
    for (const piece of pieces(from, count)) {
      const bytes = piece.slice();
      sum += bytes.length;
      if (fd === 1) output.push(bytes);
      else if (fd === 2) {
        const text = decoder.decode(bytes);
        errors += text;
        show(text);
      } else {
        const file = opened(fd);
        if (file.append) file.at = file.node.size;
        file.node.write(file.at, bytes);
        file.at += bytes.length;
      }
    }
    return sum;
  };
  const givenWords = strings(words);
  const environment = strings(["NO_COLOR=1"]);

  const functions: Record<string, (...given: never[]) => number> = {
    args_sizes_get: sizes(givenWords),
    args_get: put(givenWords),
    environ_sizes_get: sizes(environment),
    environ_get: put(environment),
    clock_time_get(_clock: number, _precision: bigint, at: number): number {
      view().setBigUint64(at, BigInt(Math.round(performance.now() * 1e6)), true);
      return 0;
    },
    random_get(at: number, length: number): number {
      for (let from = 0; from < length; from += 65536) crypto.getRandomValues(bytesAt(at + from, Math.min(65536, length - from)) as Uint8Array<ArrayBuffer>);
      return 0;
    },
    proc_exit(code: number): number {
      throw new Exit(code);
    },
    sched_yield: () => 0,
    poll_oneoff: () => ERRNO.nosys,
    fd_prestat_get(fd: number, at: number): number {
      if (fd !== ROOT) return ERRNO.badf;
      view().setUint32(at, 0, true);
      view().setUint32(at + 4, 1, true);
      return 0;
    },
    fd_prestat_dir_name(_fd: number, at: number): number {
      bytesAt(at, 1)[0] = "/".charCodeAt(0);
      return 0;
    },
    fd_fdstat_get(fd: number, at: number): number {
      if (fd > ROOT) opened(fd);
      bytesAt(at, 24).fill(0);
      view().setUint8(at, fd < ROOT ? TYPE.character : fd === ROOT ? TYPE.directory : TYPE.file);
      view().setBigUint64(at + 8, 0xffff_ffff_ffff_ffffn, true);
      view().setBigUint64(at + 16, 0xffff_ffff_ffff_ffffn, true);
      return 0;
    },
    fd_fdstat_set_flags: () => 0,
    fd_filestat_get: (fd: number, at: number): number => stat(at, fd < ROOT ? TYPE.character : fd === ROOT ? TYPE.directory : TYPE.file, fd > ROOT ? opened(fd).node.size : 0),
    fd_filestat_set_size(fd: number, size: bigint): number {
      opened(fd).node.resize(Number(size));
      return 0;
    },
    fd_read(fd: number, into: number, count: number, done: number): number {
      let sum = 0;
      if (fd !== 0) {
        const file = opened(fd);
        for (const piece of pieces(into, count)) {
          const read = file.node.read(file.at, piece);
          file.at += read;
          sum += read;
          if (read < piece.length) break;
        }
      }
      view().setUint32(done, sum, true);
      return 0;
    },
    fd_write(fd: number, from: number, count: number, done: number): number {
      const sum = write(fd, from, count);
      view().setUint32(done, sum, true);
      return 0;
    },
    fd_seek(fd: number, by: bigint, whence: number, done: number): number {
      const file = opened(fd);
      const at = Number(by) + [0, file.at, file.node.size][whence]!;
      if (at < 0) return ERRNO.inval;
      file.at = at;
      view().setBigUint64(done, BigInt(at), true);
      return 0;
    },
    fd_close: (fd: number): number => (open.delete(fd) ? 0 : ERRNO.badf),
    fd_sync: () => 0,
    fd_datasync: () => 0,
    path_open(_folder: number, _look: number, at: number, length: number, how: number, _rights: bigint, _inheriting: bigint, flags: number, done: number): number {
      const path = pathAt(at, length);
      let node = files.get(path);
      if (node && how & OPEN.create && how & OPEN.exclusive) return ERRNO.exist;
      if (!node) {
        if (FOLDERS.includes(path)) return ERRNO.inval;
        if (!(how & OPEN.create)) return ERRNO.noent;
        node = new MemoryNode();
        files.set(path, node);
      }
      if (how & OPEN.truncate) node.resize(0);
      let fd = ROOT + 1;
      while (open.has(fd)) fd += 1;
      open.set(fd, { node, at: 0, append: (flags & APPEND) !== 0 });
      view().setUint32(done, fd, true);
      return 0;
    },
    path_filestat_get(_folder: number, _flags: number, at: number, length: number, into: number): number {
      const path = pathAt(at, length);
      if (FOLDERS.includes(path)) return stat(into, TYPE.directory, 0);
      const node = files.get(path);
      return node ? stat(into, TYPE.file, node.size) : ERRNO.noent;
    },
    path_unlink_file: (_folder: number, at: number, length: number): number => (files.delete(pathAt(at, length)) ? 0 : ERRNO.noent),
    path_rename(_folder: number, at: number, length: number, _into: number, to: number, toLength: number): number {
      const node = files.get(pathAt(at, length));
      if (!node) return ERRNO.noent;
      files.delete(pathAt(at, length));
      files.set(pathAt(to, toLength), node);
      return 0;
    },
    path_link(_folder: number, _flags: number, at: number, length: number, _into: number, to: number, toLength: number): number {
      const node = files.get(pathAt(at, length));
      if (!node) return ERRNO.noent;
      if (files.has(pathAt(to, toLength))) return ERRNO.exist;
      files.set(pathAt(to, toLength), node);
      return 0;
    },
    path_readlink: () => ERRNO.inval,
    fd_readdir(_fd: number, _at: number, _length: number, _cookie: bigint, done: number): number {
      view().setUint32(done, 0, true);
      return 0;
    },
  };
  const imports: WebAssembly.ModuleImports = {};
  for (const { name: wanted } of WebAssembly.Module.imports(module)) {
    const call = functions[wanted] as ((...given: unknown[]) => number) | undefined;
    imports[wanted] = (...given: unknown[]): number => {
      try {
        return call ? call(...given) : ERRNO.nosys;
      } catch (error) {
        if (error instanceof Refused) return error.code;
        throw error;
      }
    };
  }
  const instance = new WebAssembly.Instance(module, { wasi_snapshot_preview1: imports });
  memory = instance.exports["memory"] as WebAssembly.Memory;
  let code = 0;
  try {
    (instance.exports["_start"] as () => void)();
  } catch (error) {
    if (!(error instanceof Exit)) throw error;
    code = error.code;
  }
  const whole = new Uint8Array(output.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of output) {
    whole.set(piece, at);
    at += piece.length;
  }
  return {
    code,
    stdout: decoder.decode(whole),
    stderr: errors,
    memory: memory.buffer.byteLength,
  };
}
