// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answer for a model: what each method needs at least, and which GPUs that leaves.

use serde::Serialize;
use tonnage_gpus::{Catalogue, Gpu};

use crate::bound::{Bound, Evidence, Settings, WeightType, bound, gguf_bound};
use crate::families::ConfigError;
use crate::locate::{Model, Origin};
use crate::recipes::{Recipe, Task};
use crate::safetensors::Stored;
use crate::shapes::{Kind, Shapes};

/// Version of [`Estimate`] as JSON.
pub const SCHEMA_VERSION: u32 = 1;

/// The longest sequence and the largest batch that are searched.
const LARGEST: u64 = 1 << 24;

/// The question about a model.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The methods.
    pub recipes: Vec<Recipe>,
    /// The settings of every method.
    pub settings: Settings,
    /// The type of weights of methods that only run the model.
    pub quantized: Option<WeightType>,
    /// The GPU in question.
    pub gpu: Option<&'a Gpu>,
}

/// The number of a model's parameters, and its basis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Parameters {
    /// The number.
    pub count: u64,
    /// Where it comes from: a header (`read`) or the configuration (`computed`).
    pub evidence: Evidence,
    /// The number that the configuration gives, if the headers store another one.
    pub by_configuration: Option<u64>,
}

/// A method on the GPU in question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OnGpu {
    /// Whether the lower bound is above the memory of the GPU: the method cannot fit.
    pub excluded: bool,
    /// No longer sequence is possible at this batch. None: no limit was computed, or none at all is possible.
    pub longest_sequence: Option<u64>,
    /// No larger batch is possible at this length.
    pub largest_batch: Option<u64>,
}

/// The memory of one method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Row {
    /// The name of the method.
    pub method: String,
    /// The method in words.
    pub about: String,
    /// The basis of the figures.
    pub evidence: Evidence,
    /// A lower bound of the memory that PyTorch allocates, without the context of the process.
    pub needs_at_least: Bound,
    /// The GPUs of the catalogue that the bound does not exclude, the smallest first.
    pub not_excluded: Vec<String>,
    /// The method on the GPU in question.
    pub on_gpu: Option<OnGpu>,
}

/// The GPU in question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuSize {
    /// Its name in the catalogue.
    pub id: String,
    /// Its memory.
    pub total_memory: u64,
    /// The memory of a bare context, which is added to every bound.
    pub context: u64,
}

/// The answer for a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Estimate {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// The model as it was named.
    pub model: String,
    /// Where its files were read.
    pub origin: Origin,
    /// Its parameters.
    pub parameters: Parameters,
    /// The shapes that its configuration gives.
    pub shapes: Option<Shapes>,
    /// Sums of the headers of its files.
    pub stored: Option<Stored>,
    /// The method that quantized its stored weights.
    pub quantization: Option<String>,
    /// Samples of a batch, or requests at the same time.
    pub batch: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// The GPU in question.
    pub gpu: Option<GpuSize>,
    /// The methods.
    pub rows: Vec<Row>,
    /// Limits of this answer.
    pub remarks: Vec<String>,
}

/// Why a model gives no estimate.
#[derive(Debug, thiserror::Error)]
#[error(
    "{reason}, and the model has no safetensors header to count parameters from{}",
    header(.without_headers.as_deref())
)]
pub struct EstimateError {
    reason: ConfigError,
    without_headers: Option<String>,
}

fn header(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |it| format!(" ({it})"))
}

/// Computes the answer.
pub fn estimate(
    model: &Model,
    request: &Request<'_>,
    catalogue: &Catalogue,
) -> Result<Estimate, EstimateError> {
    let quantization = model.quantization();
    let stored_quantized =
        quantization.is_some() || model.stored.as_ref().is_some_and(Stored::is_quantized);
    let mut remarks = Vec::new();
    let shapes = model.shapes.as_ref().ok();
    let parameters = count(model, stored_quantized)?;
    if model.gguf.is_none()
        && let Err(reason) = &model.shapes
    {
        remarks.push(format!(
            "{reason}: only weights, gradients, and optimizer state are counted"
        ));
    }
    if let Some(by_configuration) = parameters.by_configuration {
        remarks.push(format!(
            "the files store {} parameters, and transformers builds {by_configuration} from config.json: the \
             configuration is counted",
            parameters.count
        ));
    }
    if let Some(gguf) = &model.gguf {
        if let Some(parts) = gguf.numbers.get("split.count").filter(|parts| **parts > 1) {
            remarks.push(format!(
                "the file is one of {parts} parts: only its own tensors are counted"
            ));
        }
        let has_cache = gguf_bound(gguf, request.settings)
            .parts
            .iter()
            .any(|part| part.name == "KV cache");
        if !has_cache {
            remarks.push(
                "the KV cache is not counted: tonnage has no formula for the layers of this file"
                    .to_owned(),
            );
        }
    }
    if let Some(reason) = &model.without_headers {
        remarks.push(format!("safetensors headers were not read: {reason}"));
    }
    let counted = parameters.by_configuration.unwrap_or(parameters.count);
    let is_decoder = shapes.is_none_or(|shapes| shapes.kind == Kind::Decoder);
    // The recipes are for models that write text; the weights and their training state are certain for all.
    let shapes_of_bound = shapes.filter(|_| is_decoder);
    if !is_decoder {
        remarks.push(
            "the model is not a decoder: only weights, gradients, and optimizer state are counted"
                .to_owned(),
        );
    }
    let gpu = request.gpu;
    let context = gpu.map_or(0, |gpu| gpu.context.value);
    let mut rows = Vec::new();
    for recipe in &request.recipes {
        let runs_only = recipe.task != Task::Train;
        if !is_decoder && !matches!(recipe.name, "full" | "infer") {
            continue;
        }
        if (model.gguf.is_some() || stored_quantized) && !runs_only {
            continue;
        }
        if model.gguf.is_some() && recipe.task != Task::Serve {
            continue;
        }
        let compute = |settings: Settings| {
            if let Some(gguf) = &model.gguf {
                return gguf_bound(gguf, settings);
            }
            let mut settings = settings;
            if let Some(quantized) = request.quantized.filter(|_| runs_only) {
                settings.weights = quantized;
            }
            let mut bound = bound(recipe, counted, shapes_of_bound, settings);
            if stored_quantized {
                let least = counted.saturating_mul(model.least_bits()) / 8;
                let bytes = model.stored.as_ref().map_or(least, |stored| stored.bytes);
                bound.replace_weights(bytes);
            }
            bound
        };
        let needs = compute(request.settings);
        let not_excluded = catalogue.that_hold(needs.bytes, 0);
        let on_gpu = gpu.map(|gpu| {
            let fits = |settings| {
                let bytes = compute(settings).bytes;
                bytes.saturating_add(context) <= gpu.total_memory.value
            };
            let with_sequence = |sequence| Settings {
                sequence,
                ..request.settings
            };
            let with_batch = |batch| Settings {
                batch,
                ..request.settings
            };
            let longest = largest(|sequence| fits(with_sequence(sequence)));
            let model_longest = shapes.and_then(|shapes| shapes.longest).unwrap_or(u64::MAX);
            OnGpu {
                excluded: !fits(request.settings),
                longest_sequence: longest.map(|it| it.min(model_longest)),
                largest_batch: largest(|batch| fits(with_batch(batch))),
            }
        });
        let method = if model.gguf.is_some() {
            "llama.cpp"
        } else {
            recipe.name
        };
        let about = match &model.gguf {
            Some(_) => "all layers on the GPU, keys and values of 16 bits",
            None => &recipe.about,
        };
        rows.push(Row {
            method: method.to_owned(),
            about: about.to_owned(),
            evidence: Evidence::Computed,
            needs_at_least: needs,
            not_excluded: not_excluded.iter().map(|gpu| gpu.id.clone()).collect(),
            on_gpu,
        });
    }
    if stored_quantized
        && request
            .recipes
            .iter()
            .any(|recipe| recipe.task == Task::Train)
    {
        let how = quantization.as_deref().unwrap_or("in another type");
        remarks.push(format!(
            "the weights are stored quantized ({how}): training methods are not computed"
        ));
    }
    Ok(Estimate {
        schema_version: SCHEMA_VERSION,
        model: model.name.clone(),
        origin: model.origin.clone(),
        parameters,
        shapes: shapes.cloned(),
        stored: model.stored.clone(),
        quantization,
        batch: request.settings.batch,
        sequence: request.settings.sequence,
        gpu: gpu.map(|gpu| GpuSize {
            id: gpu.id.clone(),
            total_memory: gpu.total_memory.value,
            context,
        }),
        rows,
        remarks,
    })
}

/// The parameters of a model: those of its headers, unless they are packed, else those of its configuration.
fn count(model: &Model, stored_quantized: bool) -> Result<Parameters, EstimateError> {
    let stored = model
        .stored
        .as_ref()
        .filter(|_| !stored_quantized || model.gguf.is_some());
    let stored = stored.map(|stored| stored.elements);
    match (stored, &model.shapes) {
        (Some(count), shapes) => Ok(Parameters {
            count,
            evidence: Evidence::Read,
            by_configuration: shapes
                .as_ref()
                .ok()
                .map(|shapes| shapes.parameters)
                .filter(|it| *it != count),
        }),
        (None, Ok(shapes)) => Ok(Parameters {
            count: shapes.parameters,
            evidence: Evidence::Computed,
            by_configuration: None,
        }),
        // Packed values hold several weights each, so their number is at most that of the weights.
        (None, Err(reason)) => match &model.stored {
            Some(stored) => Ok(Parameters {
                count: stored.elements,
                evidence: Evidence::Read,
                by_configuration: None,
            }),
            None => Err(EstimateError {
                reason: reason.clone(),
                without_headers: model.without_headers.clone(),
            }),
        },
    }
}

/// The largest number for which something is true, if it is true for all smaller ones. None: for none, or for all.
fn largest(is_true: impl Fn(u64) -> bool) -> Option<u64> {
    if !is_true(1) || is_true(LARGEST) {
        return None;
    }
    let (mut low, mut high) = (1, LARGEST);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if is_true(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}
