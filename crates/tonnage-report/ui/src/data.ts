// SPDX-License-Identifier: MIT OR Apache-2.0
// The data of the page: unpacked columns, and the queries of the pictures on them.

interface Column {
  name: string;
  kind: "u8" | "varint" | "delta";
  count: number;
  bytes: number;
}

/** Compressed columns with a JSON text in front. */
export class Part<Facts> {
  readonly facts: Facts;
  private readonly columns = new Map<string, { column: Column; at: number }>();

  constructor(private readonly data: Uint8Array) {
    const length = new DataView(data.buffer, data.byteOffset, 4).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + length))) as {
      columns: Column[];
      facts: Facts;
    };
    this.facts = head.facts;
    let at = 4 + length;
    for (const column of head.columns) {
      this.columns.set(column.name, { column, at });
      at += column.bytes;
    }
  }

  /** Reads what stands in an element of the page. */
  static async unpack<Facts>(id: string): Promise<Part<Facts>> {
    const text = document.getElementById(id)?.textContent ?? "";
    const binary = atob(text);
    const packed = new Uint8Array(binary.length);
    for (let index = 0; index < binary.length; index++) packed[index] = binary.charCodeAt(index);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Part<Facts>(new Uint8Array(await new Response(stream).arrayBuffer()));
  }

  small(name: string): Uint8Array {
    const found = this.columns.get(name);
    return found ? this.data.subarray(found.at, found.at + found.column.bytes) : new Uint8Array();
  }

  numbers(name: string): Float64Array {
    const found = this.columns.get(name);
    if (!found) return new Float64Array();
    const { column } = found;
    const values = new Float64Array(column.count);
    const data = this.data;
    const delta = column.kind === "delta";
    let at = found.at;
    let before = 0;
    for (let index = 0; index < column.count; index++) {
      let byte = data[at++];
      // The first 28 bits in integer arithmetic, the rest in floating point, exact up to 2⁵³.
      let value = byte & 0x7f;
      let shift = 7;
      while (byte & 0x80 && shift < 28) {
        byte = data[at++];
        value |= (byte & 0x7f) << shift;
        shift += 7;
      }
      let scale = 2 ** shift;
      while (byte & 0x80) {
        byte = data[at++];
        value += (byte & 0x7f) * scale;
        scale *= 128;
      }
      if (delta) {
        const odd = value % 2;
        before += odd ? -(value + 1) / 2 : value / 2;
        values[index] = before;
      } else {
        values[index] = value;
      }
    }
    return values;
  }
}

export type MomentKind = "out_of_memory" | "peak" | "second_peak" | "mark" | "step_peak";

export interface Moment {
  row: number;
  kind: MomentKind;
  label: string;
  allocated: number;
  reserved: number;
  /** The request that could not be served, if that is what happened. */
  refused: { requested: number; free: number } | null;
}

export interface AllocatorRun {
  allocator: string;
  recorded: boolean;
  exact: boolean;
  completes: boolean;
  outcome: string;
  peak_reserved: number;
  peak_allocated: number;
  cached_at_peak: number;
  smallest: number | null;
  calls: number;
  retries: number;
  series: [number, number][];
}

/** The size of the blocks if their lifetimes had been known beforehand. */
export interface Planned {
  sentence: string;
  done: boolean;
  proved: boolean;
  peak: number;
  lower_bound: number;
  buffers: number;
  reserved: number | null;
  pools: string[];
}

export interface Fact {
  name: string;
  text: string;
}

/** Something that would help. */
export interface Proposal {
  advice: string;
  paste: string | null;
  proof: string;
}

/** Why, what it needs and what helps. */
export interface Answer {
  headline: string;
  figures: { name: string; bytes: number; bad: boolean }[];
  lines: Fact[];
  fixes: Proposal[];
}

export interface Finding {
  code: string;
  title: string;
  text: string;
  /** The pane that shows its blocks. */
  pane: number;
  /** How many blocks it is about. */
  blocks: number;
  /** Whether its blocks keep free memory from being given back. */
  pins: boolean;
}

/** The memory of a rank; `pane` shows it. */
export interface Rank {
  rank: number;
  used: number;
  allocated: number;
  capacity: number | null;
  pane: number | null;
}

/** The ranks of a job that were run, and a line for each group of equal ones. */
export interface Ranks {
  world_size: number;
  run: Rank[];
  lines: Fact[];
}

export interface Difference {
  what: string;
  before: number;
  after: number;
}

/** The words about the whole page. */
export interface Story {
  title: string;
  verdict: string;
  tone: "good" | "bad" | "plain";
  answer: Answer | null;
  facts: Fact[];
  findings: Finding[];
  ranks: Ranks | null;
  comparison: { groups: { title: string; rows: Difference[] }[] } | null;
  producer: string;
}

export interface PageFacts {
  version: number;
  story: Story;
  /** The name of each pane. */
  panes: string[];
}

/** The words about one pane. */
interface Words {
  name: string;
  allocators: AllocatorRun[];
  plan: Planned | null;
  unknown: string[];
}

interface TimelineFacts {
  version: number;
  words: Words;
  rows: number;
  capacity: number | null;
  context: number;
  blocks: number;
  drawn: number;
  segments: number;
  categories: string[];
  phases: string[];
  phases_left_out: number;
  moments: Moment[];
  steps_left_out: number;
  /** Whether some segments are not in the recording. */
  reserved_at_least: boolean;
}

/** Bytes at one moment. */
export interface Levels {
  row: number;
  byCategory: number[];
  allocated: number;
  reserved: number;
}

/** The first index whose value is greater. */
export function upperBound(values: Float64Array, value: number): number {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Bytes over time. */
export class Timeline {
  readonly facts: TimelineFacts;
  readonly start: Float64Array;
  readonly highRow: Float64Array;
  readonly highReserved: Float64Array;
  readonly high: Float64Array[];
  readonly highTotal: Float64Array;
  readonly lowRow: Float64Array;
  readonly lowReserved: Float64Array;
  readonly low: Float64Array[];
  readonly lowTotal: Float64Array;
  readonly mostReserved: Float64Array;
  readonly phaseFrom: Float64Array;
  readonly phaseTo: Float64Array;
  readonly phase: Uint8Array;
  readonly phaseStep: Float64Array;
  private readonly timeRow: Float64Array;
  private readonly time: Float64Array;
  /** Categories that occur, by number. */
  readonly present: number[];
  /** Most bytes held from the driver, or alive where segments are not known, with the context. */
  readonly mostUsed: number;

  constructor(part: Part<TimelineFacts>) {
    this.facts = part.facts;
    // The phase of an optimizer's step, distinguished from the step that all phases belong to.
    this.facts.phases = this.facts.phases.map((name) => (name === "step" ? "optimizer" : name));
    this.start = part.numbers("start");
    const all = this.facts.categories.map((_, category) => category);
    const rows = (name: string) => part.numbers(name).map((offset, index) => offset + this.start[index]);
    const sum = (columns: Float64Array[]) => {
      const total = new Float64Array(this.start.length);
      for (const column of columns) for (let index = 0; index < total.length; index++) total[index] += column[index];
      return total;
    };
    this.highRow = rows("high_row");
    this.highReserved = part.numbers("high_reserved");
    this.high = all.map((category) => part.numbers(`high_${category}`));
    this.highTotal = sum(this.high);
    this.lowRow = rows("low_row");
    this.lowReserved = part.numbers("low_reserved");
    this.low = all.map((category) => part.numbers(`low_${category}`));
    this.lowTotal = sum(this.low);
    this.mostReserved = part.numbers("most_reserved");
    this.phaseFrom = part.numbers("phase_from");
    this.phaseTo = part.numbers("phase_to");
    this.phase = part.small("phase");
    this.phaseStep = part.numbers("phase_step");
    this.timeRow = part.numbers("time_row");
    this.time = part.numbers("time");
    this.present = all.filter((category) => this.high[category].some((value) => value > 0));
    let most = 0;
    for (const value of this.mostReserved) most = Math.max(most, value);
    for (const value of this.highTotal) most = Math.max(most, value);
    this.mostUsed = most + this.facts.context;
  }

  get rows(): number {
    return Math.max(1, this.facts.rows);
  }

  /** Whether what the allocator holds is known. */
  get hasReserved(): boolean {
    return this.facts.segments > 0;
  }

  /** The stretch that holds a row. */
  stretchAt(row: number): number {
    return Math.max(0, upperBound(this.start, row) - 1);
  }

  /** Rows of a stretch. */
  lengthOf(stretch: number): number {
    return (this.start[stretch + 1] ?? this.rows) - this.start[stretch];
  }

  highOf(stretch: number): Levels {
    return {
      row: this.highRow[stretch],
      byCategory: this.high.map((column) => column[stretch]),
      allocated: this.highTotal[stretch],
      reserved: this.highReserved[stretch],
    };
  }

  lowOf(stretch: number): Levels {
    return {
      row: this.lowRow[stretch],
      byCategory: this.low.map((column) => column[stretch]),
      allocated: this.lowTotal[stretch],
      reserved: this.lowReserved[stretch],
    };
  }

  /** The known moment nearest to a row: the highest or the lowest of its stretch. */
  levelsNear(row: number): Levels {
    const stretch = this.stretchAt(row);
    const low = this.lowRow[stretch];
    return low === row && this.highRow[stretch] !== row ? this.lowOf(stretch) : this.highOf(stretch);
  }

  /** The number of the phase that holds a row, or -1. */
  phaseAt(row: number): number {
    const index = upperBound(this.phaseFrom, row) - 1;
    return index >= 0 && row < this.phaseTo[index] ? index : -1;
  }

  /** Whether the recording has steps and passes, which then are the axis. */
  get hasPhases(): boolean {
    return this.phase.some((phase) => phase !== 0);
  }

  /** Where a row is in the program, in words. */
  place(row: number): string {
    const phase = this.hasPhases ? this.phaseAt(row) : -1;
    if (phase < 0) return "";
    const name = this.facts.phases[this.phase[phase]];
    if (name === "load") return "loading";
    return `step ${this.phaseStep[phase].toLocaleString("en-US")}, ${name === "other" ? "between passes" : name}`;
  }

  /** Nanoseconds since the start at which a row happened, or none without a clock. */
  timeAt(row: number): number | null {
    const { timeRow, time } = this;
    if (timeRow.length < 2) return null;
    const after = Math.min(Math.max(1, upperBound(timeRow, row)), timeRow.length - 1);
    const width = timeRow[after] - timeRow[after - 1];
    const part = width > 0 ? (row - timeRow[after - 1]) / width : 0;
    return time[after - 1] + Math.min(1, Math.max(0, part)) * (time[after] - time[after - 1]);
  }

  /** Requests that could not be served, each on top of the memory in use. */
  refusals(): { moment: Moment; lower: number; upper: number }[] {
    const { context, moments } = this.facts;
    return moments.flatMap((moment) => {
      const { refused } = moment;
      if (!refused) return [];
      const lower = Math.max(moment.allocated, moment.reserved) + context;
      return [{ moment, lower, upper: lower + refused.requested }];
    });
  }

  /** The moment the page opens with: the failure, else the peak. */
  firstMoment(): Moment | undefined {
    const of = (kind: MomentKind) => this.facts.moments.filter((moment) => moment.kind === kind).at(-1);
    return of("out_of_memory") ?? of("peak");
  }
}

interface BlockFacts {
  version: number;
  /** The part of the plan that is not drawn one by one. */
  plan_rest_blocks: number;
  plan_rest_largest: number;
  rest_blocks: number;
  rest_bytes: number;
  rest_largest: number;
  segments_left_out: number;
  grid_columns: number;
  grid_lines: number;
  /** The stack of the request that could not be served; 0 means none. */
  failure_stack: number;
  /** Blocks of findings: so many of the column `marked` each, in order. */
  marked: { finding: number; drawn: number; left_out: number }[];
}

/** A place in a program. */
export interface Place {
  function: string;
  file: string;
  line: number;
  /** Whether it is in the user's own code. */
  own: boolean;
}

/** Blocks, segments, and what they are called. */
export class Blocks {
  readonly facts: BlockFacts;
  readonly length: number;
  /** The same blocks where the plan puts them, if there is one; its arenas are segments that are always held. */
  readonly packed: Blocks | null;
  readonly born: Float64Array;
  /** The row that took it back; beyond the last row if none did. */
  readonly died: Float64Array;
  readonly address: Float64Array;
  readonly bytes: Float64Array;
  readonly spare: Float64Array;
  readonly category: Uint8Array;
  readonly isExact: Uint8Array;
  /** The row after the last use of each block that stays in memory unused, infinite for the others; empty if no block is known to be one. */
  readonly unusedFrom: Float64Array;
  readonly bornIn: Uint8Array;
  readonly step: Float64Array;
  readonly stream: Float64Array;
  readonly module: Float64Array;
  readonly name: Float64Array;
  readonly shape: Float64Array;
  /** The holder, and its line. */
  readonly holder: Float64Array;
  readonly holderLine: Float64Array;
  readonly stack: Float64Array;
  /** The drawn blocks of each finding, by its number on the page. */
  readonly marked: ReadonlyMap<number, number[]>;
  readonly streamHandle: Float64Array;
  readonly segmentBorn: Float64Array;
  readonly segmentDied: Float64Array;
  readonly segmentAddress: Float64Array;
  readonly segmentBytes: Float64Array;
  readonly segmentStream: Float64Array;
  readonly rangeAddress: Float64Array;
  readonly rangeBytes: Float64Array;
  readonly grid: Uint8Array;
  private readonly stackParent: Float64Array;
  private readonly stackFrame: Float64Array;
  private readonly frameFunction: Float64Array;
  private readonly frameFile: Float64Array;
  private readonly frameLine: Float64Array;
  private readonly frameOwn: Uint8Array;
  private readonly textEnd: Float64Array;
  private readonly textBytes: Uint8Array;
  private readonly texts: (string | undefined)[] = [];
  private readonly decoder = new TextDecoder();

  constructor(part: Part<BlockFacts>, rows: number) {
    this.facts = part.facts;
    this.born = part.numbers("born");
    this.length = this.born.length;
    const end = (born: Float64Array, name: string) =>
      part.numbers(name).map((life, index) => (life === 0 ? rows + 1 : born[index] + life - 1));
    this.died = end(this.born, "life");
    this.address = part.numbers("address");
    this.bytes = part.numbers("bytes");
    this.spare = part.numbers("spare");
    const what = part.small("what");
    this.category = what.map((value) => value & 15);
    this.unusedFrom = part.numbers("unused").map((from, block) => (from === 0 ? Infinity : this.born[block] + from - 1));
    this.isExact = what.map((value) => value >> 4);
    this.bornIn = part.small("born_in");
    this.step = part.numbers("step");
    this.stream = part.numbers("stream");
    this.module = part.numbers("module");
    this.name = part.numbers("name");
    this.shape = part.numbers("shape");
    this.holder = part.numbers("holder");
    this.holderLine = part.numbers("holder_line");
    const marked = part.numbers("marked");
    let next = 0;
    this.marked = new Map(
      part.facts.marked.map(({ finding, drawn }) => [finding, Array.from(marked.subarray(next, (next += drawn)))] as const),
    );
    this.stack = part.numbers("stack");
    this.streamHandle = part.numbers("stream_handle");
    this.segmentBorn = part.numbers("segment_born");
    this.segmentDied = end(this.segmentBorn, "segment_life");
    this.segmentAddress = part.numbers("segment_address");
    this.segmentBytes = part.numbers("segment_bytes");
    this.segmentStream = part.numbers("segment_stream");
    this.rangeAddress = part.numbers("range_address");
    this.rangeBytes = part.numbers("range_bytes");
    this.grid = part.small("grid");
    this.stackParent = part.numbers("stack_depth").map((distance, index) => (distance ? index + 1 - distance : 0));
    this.stackFrame = part.numbers("stack_frame");
    this.frameFunction = part.numbers("frame_function");
    this.frameFile = part.numbers("frame_file");
    this.frameLine = part.numbers("frame_line");
    this.frameOwn = part.small("frame_own");
    let sum = 0;
    this.textEnd = part.numbers("text_bytes").map((size) => (sum += size));
    this.textBytes = part.small("text");
    this.packed = this.pack(part, rows);
  }

  private pack(part: Part<BlockFacts>, rows: number): Blocks | null {
    const [address, bytes] = [part.numbers("plan_range_address"), part.numbers("plan_range_bytes")];
    if (address.length === 0) return null;
    const other: Partial<Blocks> = {
      facts: { ...this.facts, rest_blocks: this.facts.plan_rest_blocks, rest_largest: this.facts.plan_rest_largest },
      // A block outside the plan has no life in it.
      died: part.numbers("plan_life").map((life, block) => this.born[block] + life),
      address: part.numbers("plan_address"),
      bytes: part.numbers("plan_bytes"),
      segmentBorn: new Float64Array(address.length),
      segmentDied: new Float64Array(address.length).fill(rows + 1),
      segmentAddress: address,
      segmentBytes: bytes,
      segmentStream: new Float64Array(address.length),
      rangeAddress: address,
      rangeBytes: bytes,
      grid: part.small("plan_grid"),
    };
    return Object.assign(Object.create(this) as Blocks, other);
  }

  text(id: number): string {
    let text = this.texts[id];
    if (text === undefined) {
      const from = id > 0 ? this.textEnd[id - 1] : 0;
      text = this.decoder.decode(this.textBytes.subarray(from, this.textEnd[id]));
      this.texts[id] = text;
    }
    return text;
  }

  get textCount(): number {
    return this.textEnd.length;
  }

  /** The places of a stack, innermost first. */
  places(stack: number): Place[] {
    const places: Place[] = [];
    for (let at = stack; at > 0; at = this.stackParent[at - 1]) {
      const frame = this.stackFrame[at - 1];
      if (frame > 0) places.push(this.placeOf(frame));
    }
    return places;
  }

  private placeOf(frame: number): Place {
    return {
      function: this.text(this.frameFunction[frame - 1]),
      file: this.text(this.frameFile[frame - 1]),
      line: this.frameLine[frame - 1],
      own: this.frameOwn[frame - 1] === 1,
    };
  }

  private readonly lines = new Map<number, string>();

  /** The line that identifies a stack: the innermost that is not a library's. */
  lineOf(stack: number): string {
    let line = this.lines.get(stack);
    if (line === undefined) {
      const places = this.places(stack);
      const own = places.find((place) => place.own) ?? places.find((place) => place.file !== "??") ?? places[0];
      line = own ? placeText(own) : "no stack recorded";
      this.lines.set(stack, line);
    }
    return line;
  }

  /** Drawn blocks that are alive at a row, and not used any more. */
  unusedAt(row: number): number[] {
    const found: number[] = [];
    for (let block = 0; block < this.unusedFrom.length && this.born[block] <= row; block++) {
      if (this.unusedFrom[block] <= row && row < this.died[block]) found.push(block);
    }
    return found;
  }

  isAlive(block: number, row: number): boolean {
    return this.born[block] <= row && row < this.died[block];
  }

  /** Which blocks a text occurs in: 1 for each match. Lower-case comparison. */
  matches(query: string): Uint8Array {
    const wanted = query.toLowerCase();
    const inText = new Uint8Array(this.textCount);
    for (let id = 1; id < inText.length; id++) inText[id] = this.text(id).toLowerCase().includes(wanted) ? 1 : 0;
    const frames = this.frameFunction.length;
    const inFrame = new Uint8Array(frames + 1);
    for (let frame = 1; frame <= frames; frame++) {
      inFrame[frame] =
        inText[this.frameFunction[frame - 1]] || inText[this.frameFile[frame - 1]]
          ? 1
          : Number(placeText(this.placeOf(frame)).toLowerCase().includes(wanted));
    }
    const inStack = new Uint8Array(this.stackFrame.length + 1);
    // A caller's number is smaller, so it is settled already.
    for (let at = 1; at < inStack.length; at++) {
      inStack[at] = inFrame[this.stackFrame[at - 1]] | inStack[this.stackParent[at - 1]];
    }
    const found = new Uint8Array(this.length);
    for (let block = 0; block < found.length; block++) {
      found[block] =
        inText[this.module[block]] | inText[this.name[block]] | inText[this.shape[block]] | inText[this.holder[block]] | inStack[this.stack[block]];
    }
    return found;
  }
}

export function placeText(place: Place): string {
  return `${place.file}:${place.line}`;
}
