// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans instances and prints a table: bound, peak, time, memory. `docs/benchmarks-plan.md` describes its use.
//!
//! ```text
//! planner_bench [--capacity BYTES] [--deadline SECONDS] [--seeds N] FILE...   CSV with id, lower, upper, size
//! planner_bench [--deadline SECONDS] [--seeds N] --random FAMILY:BUFFERS...   families: uniform, layers, stack, mixed
//! planner_bench [--deadline SECONDS] --repeat BUFFERS FILE                    a step repeated with varied sizes
//! ```
//!
//! Times are those of the process on its core, user and system, one thread; every plan is checked, and the check is
//! not in the time. Memory is the peak of the process less what it had before planning, for each buffer.
#![expect(clippy::print_stdout, reason = "it prints a table")]

use std::error::Error;
use std::time::Duration;

use tonnage_plan::{Buffer, Options, Problem, Status, check, plan};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut setting = Setting {
        capacity: None,
        deadline: 10.0,
        seeds: 1,
    };
    println!(
        "| instance | buffers | bound | worst peak | gap | proved | mean s | worst s | B/buffer |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut sum = (0.0, 0.0_f64);
    let mut random = false;
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or_else(|| format!("{argument} wants a value"))
        };
        match argument.as_str() {
            "--capacity" => setting.capacity = Some(value()?.parse()?),
            "--deadline" => setting.deadline = value()?.parse()?,
            "--seeds" => setting.seeds = value()?.parse()?,
            "--random" => random = true,
            "--repeat" => {
                let (count, file) = (value()?.parse()?, value()?);
                let step = read(&file)?;
                setting.measure(
                    &format!("{} x", name(&file)),
                    repeat(&step, count),
                    &mut sum,
                )?;
            }
            family if random => {
                let (family, count) = family.split_once(':').ok_or("say FAMILY:BUFFERS")?;
                let lifetimes = generate(family, count.parse()?)?;
                setting.measure(family, lifetimes, &mut sum)?;
            }
            file => setting.measure(name(file), read(file)?, &mut sum)?,
        }
    }
    println!("\nsum of means {:.3} s, worst {:.3} s", sum.0, sum.1);
    Ok(())
}

type Lifetimes = Vec<(i64, i64, u64)>;

fn name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file)
}

fn read(path: &str) -> Result<Lifetimes, Box<dyn Error>> {
    let text = std::fs::read_to_string(path)?;
    let line = |line: &str| {
        let mut fields = line.split(',').skip(1);
        let mut field = || fields.next().unwrap_or("").trim();
        Ok((field().parse()?, field().parse()?, field().parse()?))
    };
    text.lines()
        .skip(1)
        .filter(|line| !line.is_empty())
        .map(line)
        .collect()
}

struct Setting {
    capacity: Option<u64>,
    deadline: f64,
    seeds: u64,
}

impl Setting {
    fn measure(
        &self,
        name: &str,
        lifetimes: Lifetimes,
        sum: &mut (f64, f64),
    ) -> Result<(), Box<dyn Error>> {
        let mut problem = self.capacity.map_or_else(Problem::new, Problem::fitting);
        problem.reserve(lifetimes.len());
        for &(start, end, size) in &lifetimes {
            problem.add(Buffer::new(size, start..end));
        }
        drop(lifetimes);
        let (mut total, mut worst, mut peak, mut bound) = (0.0, 0.0_f64, 0, 0);
        let (mut optimal, mut fits) = (0, 0);
        let before = status("VmRSS:")?;
        let mut most = 0;
        for seed in 1..=self.seeds {
            let options = Options {
                seed,
                threads: 1,
                deadline: Some(Duration::from_secs_f64(self.deadline)),
                attempts: u64::MAX,
                ..Options::default()
            };
            let start = cpu()?;
            let plan = plan(&problem, &options)?;
            let took = cpu()? - start;
            most = most.max(status("VmHWM:")?);
            check(&problem, &plan)?;
            total += took;
            worst = worst.max(took);
            peak = peak.max(plan.peak());
            bound = bound.max(plan.lower_bound());
            optimal += u64::from(plan.status == Status::Optimal);
            fits += u64::from(matches!(plan.status, Status::Optimal | Status::Fits));
        }
        let mean = total / self.seeds as f64;
        *sum = (sum.0 + mean, sum.1.max(worst));
        // The memory of the problem itself counts too.
        let held = 24 * problem.len() as u64;
        println!(
            "| {name} | {} | {bound} | {peak} | {:.4} % | {optimal} optimal, {fits} fit of {} | {mean:.3} | {worst:.3} | {} |",
            problem.len(),
            (peak - bound) as f64 * 100.0 / bound as f64,
            self.seeds,
            (most.saturating_sub(before) + held) / problem.len() as u64,
        );
        Ok(())
    }
}

/// Seconds on a core so far.
fn cpu() -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = text
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.0)
}

/// Bytes from the kernel's account of this process.
fn status(field: &str) -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .ok_or("no such field")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

/// A linear congruential generator, so that a family is the same everywhere and shares no code with the planner.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// One step, again and again: sizes of each round scaled by 80 to 120 per cent; what lives through the whole step
/// lives through all rounds.
fn repeat(step: &Lifetimes, count: usize) -> Lifetimes {
    let first = step.iter().map(|lifetime| lifetime.0).min().unwrap_or(0);
    let last = step.iter().map(|lifetime| lifetime.1).max().unwrap_or(1);
    let (whole, part): (Lifetimes, Lifetimes) = step
        .iter()
        .partition(|lifetime| lifetime.0 == first && lifetime.1 == last);
    let rounds = count
        .saturating_sub(whole.len())
        .div_ceil(part.len().max(1)) as i64;
    let mut draw = Draw(7);
    let span = last - first;
    let mut lifetimes: Lifetimes = whole
        .iter()
        .map(|lifetime| (0, span * rounds, lifetime.2))
        .collect();
    for round in 0..rounds {
        let percent = 80 + draw.below(41);
        for &(start, end, size) in &part {
            let size = (size * percent / 100).max(1).next_multiple_of(512);
            lifetimes.push((
                start - first + span * round,
                end - first + span * round,
                size,
            ));
        }
    }
    lifetimes
}

/// Families of random instances that no rule was chosen on.
fn generate(family: &str, count: u64) -> Result<Lifetimes, Box<dyn Error>> {
    let mut draw = Draw(count);
    let end = count as i64;
    let power = |draw: &mut Draw, most: u32| 1_u64 << draw.below(u64::from(most));
    let mut lifetimes = Lifetimes::new();
    for index in 0..count as i64 {
        let lifetime = match family {
            // Anything anywhere.
            "uniform" => {
                let start = draw.below(count) as i64;
                (
                    start,
                    start + 1 + draw.below(200) as i64,
                    64 * (1 + draw.below(4096)),
                )
            }
            // Forward and backward through layers: what one makes the mirror image uses.
            "layers" => {
                let half = end / 2;
                let (start, size) = (index.min(end - 1 - index), power(&mut draw, 12) * 512);
                if index < half && draw.below(2) == 0 {
                    (start, end - start, size)
                } else {
                    (index, index + 2 + draw.below(3) as i64, size)
                }
            }
            // Short lifetimes, sizes of few kinds.
            "stack" => (
                index,
                index + 1 + power(&mut draw, 8) as i64,
                512 * [1, 3, 7, 64, 100][draw.below(5) as usize],
            ),
            // Long and short, large and small, unrelated.
            "mixed" => {
                let start = draw.below(count) as i64;
                (
                    start,
                    start + power(&mut draw, 14) as i64,
                    power(&mut draw, 20) + draw.below(1000),
                )
            }
            _ => return Err("families are uniform, layers, stack and mixed".into()),
        };
        lifetimes.push(lifetime);
    }
    Ok(lifetimes)
}
