// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings of `PYTORCH_CUDA_ALLOC_CONF`, read as torch reads them.
//!
//! torch's reader is lenient in ways people rely on: blanks vanish anywhere, the
//! separators are never compared with what they should be, a number ends at its
//! first odd character. It reads the text twice, first the keys every
//! accelerator has, then those of CUDA, and whatever was read before an error
//! stays (specification 9). All of that is kept.

use std::collections::BTreeMap;

use thiserror::Error;

const MIB: u64 = 1 << 20;
/// Intervals of the rounding: below 2 MiB, then one for each doubling.
pub(super) const INTERVALS: usize = 16;

/// Bytes that the large pool obtains for requests below [`MIN_OWN_SEGMENT`], unless set otherwise.
pub(super) const LARGE_SEGMENT: u64 = 20 << 20;
/// Requests from this size on get a segment of their own size.
pub(super) const MIN_OWN_SEGMENT: u64 = 10 << 20;
const MAX_REGISTER_THREADS: u64 = 128;

/// Which allocator torch uses; only the native one is simulated here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The caching allocator.
    #[default]
    Native,
    /// The driver's stream-ordered pools.
    CudaMallocAsync,
}

/// How much address space an expandable segment reserves.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reserve {
    /// A fraction of the device's memory.
    Fraction(f64),
    /// So many GiB.
    Gibibytes(f64),
}

impl Reserve {
    pub(super) fn bytes(self, total: u64) -> u64 {
        // A float that is too large becomes the largest integer, as in torch.
        match self {
            Self::Fraction(fraction) => (fraction * total as f64) as u64,
            Self::Gibibytes(count) => (count * (1_u64 << 30) as f64) as u64,
        }
    }
}

/// Every setting that moves device memory. Sizes are in bytes.
///
/// ```
/// use tonnage_alloc::torch::Settings;
///
/// // The value of PYTORCH_CUDA_ALLOC_CONF.
/// let settings: Settings = "expandable_segments:True,garbage_collection_threshold:0.8".parse()?;
/// assert!(settings.expandable_segments);
/// // What PyTorch refuses is refused here.
/// assert!("garbage_collection_threshold:2".parse::<Settings>().is_err());
/// # Ok::<(), tonnage_alloc::torch::SettingsError>(())
/// ```
#[expect(
    clippy::struct_excessive_bools,
    reason = "torch's settings are what they are"
)]
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `backend`.
    pub backend: Backend,
    /// `large_segment_size_mb`: what is obtained for requests between 1 and 10 MiB.
    pub large_segment_size: u64,
    /// `max_split_size_mb`: blocks of this size are not cut; `u64::MAX` for no limit.
    pub max_split_size: u64,
    /// `max_non_split_rounding_mb`: how much larger than the request an uncut block may be.
    pub max_non_split_rounding: u64,
    /// `garbage_collection_threshold`, 0 for never; needs a memory fraction below 1.
    pub garbage_collection_threshold: f64,
    /// `roundup_power2_divisions` by interval: below 2 MiB, then each doubling.
    pub roundup_power2_divisions: [u64; INTERVALS],
    /// `expandable_segments`.
    pub expandable_segments: bool,
    /// `expandable_segments_reserve`.
    pub expandable_segments_reserve: Option<Reserve>,
    /// `expandable_segments_reserve_by_class`.
    pub expandable_segments_reserve_by_class: BTreeMap<String, Reserve>,
    /// `per_process_memory_fraction`: becomes the limit when the allocator is made.
    pub per_process_memory_fraction: f64,
    /// `throw_on_cudamalloc_oom`.
    pub throw_on_cudamalloc_oom: bool,
    /// `graph_capture_record_stream_reuse`.
    pub graph_capture_record_stream_reuse: bool,
    /// `release_lock_on_cudamalloc`; moves nothing in a simulation without threads.
    pub release_lock_on_cudamalloc: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backend: Backend::Native,
            large_segment_size: LARGE_SEGMENT,
            max_split_size: u64::MAX,
            max_non_split_rounding: LARGE_SEGMENT,
            garbage_collection_threshold: 0.0,
            roundup_power2_divisions: [0; INTERVALS],
            expandable_segments: false,
            expandable_segments_reserve: None,
            expandable_segments_reserve_by_class: BTreeMap::new(),
            per_process_memory_fraction: 1.0,
            throw_on_cudamalloc_oom: false,
            graph_capture_record_stream_reuse: false,
            release_lock_on_cudamalloc: false,
        }
    }
}

/// The error in a settings string.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SettingsError {
    /// No such key.
    #[error("unrecognized key '{0}'")]
    UnknownKey(String),
    /// The text ends where a value was expected, or a bracket stays open.
    #[error("the settings end too early")]
    Truncated,
    /// Not the beginning of a number, or one that is out of range.
    #[error("{key}: '{value}' is not a number")]
    NotANumber {
        /// The setting.
        key: &'static str,
        /// The text found there.
        value: String,
    },
    /// Neither `True` nor `False`.
    #[error("{key}: expected 'True' or 'False' but got '{value}'")]
    NotABool {
        /// The setting.
        key: &'static str,
        /// The text found there.
        value: String,
    },
    /// A value outside of what the setting takes.
    #[error("{key}: {value} is not allowed, {must}")]
    OutOfRange {
        /// The setting.
        key: &'static str,
        /// The text found there.
        value: String,
        /// The violated condition.
        must: String,
    },
}

impl std::str::FromStr for Settings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        settings.update(text)?;
        Ok(settings)
    }
}

/// Every key. The text is read three times, and each reading takes its own keys
/// and passes over those of the others.
const KEYS: [&str; 22] = [
    "large_segment_size_mb",
    // The variable of every accelerator.
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "expandable_segments",
    "pinned_use_background_threads",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    // The variable of CUDA.
    "backend",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",
    "throw_on_cudamalloc_oom",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
];

impl Settings {
    /// Reads `text` over these settings, as a change at run time does: the split
    /// size, the rounding, the divisions and the garbage collection start from
    /// their defaults, everything else keeps its value unless mentioned.
    ///
    /// # Errors
    /// The error; as in torch, settings read before it stay in force.
    pub fn update(&mut self, text: &str) -> Result<(), SettingsError> {
        self.max_split_size = u64::MAX;
        self.roundup_power2_divisions = [0; INTERVALS];
        self.garbage_collection_threshold = 0.0;
        let tokens = Tokens::new(text);
        self.read_large_segment_size(&tokens)?;
        self.max_non_split_rounding = self.large_segment_size;
        tokens.each_key(|key, at| self.read_common(&tokens, key, at))?;
        tokens.each_key(|key, at| self.read_cuda(&tokens, key, at))
    }

    /// The large segment comes first, because others are compared with it.
    fn read_large_segment_size(&mut self, tokens: &Tokens<'_>) -> Result<(), SettingsError> {
        const KEY: &str = "large_segment_size_mb";
        let mut at = 0;
        while at < tokens.0.len() {
            if tokens.0[at] == KEY {
                at += 2;
                let value = tokens.integer(KEY, at)?;
                let least = MIN_OWN_SEGMENT / MIB;
                require(KEY, &value, value > least, || {
                    format!("must be > {least} MB")
                })?;
                self.large_segment_size = mebibytes(value);
            }
            at += 1;
        }
        Ok(())
    }

    /// One key every accelerator has; answers with the place of its last token.
    fn read_common(
        &mut self,
        tokens: &Tokens<'_>,
        key: &str,
        at: usize,
    ) -> Result<usize, SettingsError> {
        let value = at + 2;
        match key {
            "max_split_size_mb" => {
                self.max_split_size = self.at_least_large(tokens, "max_split_size_mb", value)?;
            }
            "max_non_split_rounding_mb" => {
                self.max_non_split_rounding =
                    self.at_least_large(tokens, "max_non_split_rounding_mb", value)?;
            }
            "garbage_collection_threshold" => {
                const KEY: &str = "garbage_collection_threshold";
                let threshold = tokens.float(KEY, value)?;
                require(KEY, &threshold, threshold > 0.0 && threshold < 1.0, || {
                    "set it in (0.0, 1.0)".to_owned()
                })?;
                self.garbage_collection_threshold = threshold;
            }
            "roundup_power2_divisions" => return self.read_divisions(tokens, value),
            "expandable_segments" => {
                self.expandable_segments = tokens.boolean("expandable_segments", value)?;
            }
            "pinned_use_background_threads" => {
                tokens.boolean("pinned_use_background_threads", value)?;
            }
            "pinned_max_round_threshold_mb" => {
                tokens.integer("pinned_max_round_threshold_mb", value)?;
            }
            "pinned_max_cached_size_mb" => {
                tokens.integer("pinned_max_cached_size_mb", value)?;
            }
            other => return tokens.skip_known(other, at),
        }
        Ok(value)
    }

    /// One key of CUDA's own; answers with the place of its last token.
    fn read_cuda(
        &mut self,
        tokens: &Tokens<'_>,
        key: &str,
        at: usize,
    ) -> Result<usize, SettingsError> {
        let value = at + 2;
        match key {
            "backend" => {
                let name = tokens.get(value)?;
                self.backend = match name {
                    "native" => Backend::Native,
                    "cudaMallocAsync" => Backend::CudaMallocAsync,
                    _ => {
                        return Err(out_of_range("backend", &name, || {
                            "options are native and cudaMallocAsync".to_owned()
                        }));
                    }
                };
            }
            "release_lock_on_cudamalloc" | "release_lock_on_hipmalloc" => {
                self.release_lock_on_cudamalloc =
                    tokens.boolean("release_lock_on_cudamalloc", value)?;
            }
            "pinned_use_cuda_host_register" | "pinned_use_hip_host_register" => {
                tokens.boolean("pinned_use_cuda_host_register", value)?;
            }
            "pinned_num_register_threads" => {
                const KEY: &str = "pinned_num_register_threads";
                let threads = tokens.integer(KEY, value)?;
                let allowed = threads.is_power_of_two() && threads <= MAX_REGISTER_THREADS;
                require(KEY, &threads, allowed, || {
                    format!("must be a power of 2 up to {MAX_REGISTER_THREADS}")
                })?;
            }
            "pinned_reserve_segment_size_mb" => {
                const KEY: &str = "pinned_reserve_segment_size_mb";
                let size = tokens.integer(KEY, value)?;
                require(KEY, &size, size > 0, || "must be greater than 0".to_owned())?;
            }
            "pinned_free_catch_all" => {
                tokens.boolean("pinned_free_catch_all", value)?;
            }
            "graph_capture_record_stream_reuse" => {
                self.graph_capture_record_stream_reuse =
                    tokens.boolean("graph_capture_record_stream_reuse", value)?;
            }
            "per_process_memory_fraction" => {
                const KEY: &str = "per_process_memory_fraction";
                let fraction = tokens.float(KEY, value)?;
                require(KEY, &fraction, (0.0..=1.0).contains(&fraction), || {
                    "set it in [0.0, 1.0]".to_owned()
                })?;
                self.per_process_memory_fraction = fraction;
            }
            "throw_on_cudamalloc_oom" => {
                self.throw_on_cudamalloc_oom = tokens.boolean("throw_on_cudamalloc_oom", value)?;
            }
            "expandable_segments_reserve" => {
                // A bad value is only a warning in torch.
                if let Some(reserve) = read_reserve(tokens.get(value)?) {
                    self.expandable_segments_reserve = Some(reserve);
                }
            }
            "expandable_segments_reserve_by_class" => {
                return self.read_reserves(tokens, value);
            }
            // Only a bracket where none belongs makes the two readings differ.
            other => return tokens.skip_known(other, at),
        }
        Ok(value)
    }

    /// A size in MiB that may not be smaller than a large segment.
    fn at_least_large(
        &self,
        tokens: &Tokens<'_>,
        key: &'static str,
        at: usize,
    ) -> Result<u64, SettingsError> {
        let value = tokens.integer(key, at)?;
        let least = self.large_segment_size / MIB;
        require(key, &value, value >= least, || {
            format!("must be >= {least}")
        })?;
        Ok(mebibytes(value))
    }

    /// One number for all intervals, or `[boundary:divisions,…,>:divisions]`.
    fn read_divisions(&mut self, tokens: &Tokens<'_>, at: usize) -> Result<usize, SettingsError> {
        const KEY: &str = "roundup_power2_divisions";
        if tokens.get(at)? != "[" {
            let divisions = tokens.integer(KEY, at)?;
            require(KEY, &divisions, divisions.is_power_of_two(), || {
                "the divisions have to be a power of 2".to_owned()
            })?;
            self.roundup_power2_divisions = [divisions; INTERVALS];
            return Ok(at);
        }
        let mut at = at + 1;
        let mut last = 0;
        let mut first = true;
        while tokens.get(at)? != "]" {
            let divisions = tokens.integer(KEY, at + 2)?;
            let allowed = divisions == 0 || divisions.is_power_of_two();
            require(KEY, &divisions, allowed, || {
                "the divisions have to be a power of 2 or 0".to_owned()
            })?;
            if tokens.get(at)? == ">" {
                self.roundup_power2_divisions[last + 1..].fill(divisions);
            } else {
                let boundary = tokens.integer(KEY, at)?;
                require(KEY, &boundary, boundary.is_power_of_two(), || {
                    "the intervals have to be a power of 2".to_owned()
                })?;
                let interval = (boundary.trailing_zeros() as usize).min(INTERVALS - 1);
                if std::mem::take(&mut first) {
                    self.roundup_power2_divisions[..interval].fill(divisions);
                }
                self.roundup_power2_divisions[interval] = divisions;
                last = interval;
            }
            at += 3;
            if tokens.get(at)? != "]" {
                at += 1;
            }
        }
        Ok(at)
    }

    /// `[class:reserve,…]`; a bad reserve is skipped, a missing bracket is not.
    fn read_reserves(&mut self, tokens: &Tokens<'_>, at: usize) -> Result<usize, SettingsError> {
        tokens.get(at)?;
        let mut reserves = BTreeMap::new();
        let mut at = at + 1;
        while tokens.get(at)? != "]" {
            let class = tokens.get(at)?;
            if let Some(reserve) = read_reserve(tokens.get(at + 2)?) {
                reserves.insert(class.to_owned(), reserve);
            }
            at += 3;
            if tokens.get(at)? == "," {
                at += 1;
            }
        }
        self.expandable_segments_reserve_by_class = reserves;
        Ok(at)
    }
}

/// The text cut at `,`, `:` and brackets, which are tokens themselves, without blanks.
struct Tokens<'a>(Vec<std::borrow::Cow<'a, str>>);

impl<'a> Tokens<'a> {
    fn new(text: &'a str) -> Self {
        let mut tokens = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.find([',', ':', '[', ']']).unwrap_or(rest.len());
            let (word, more) = rest.split_at(end);
            // The blanks of C's `isspace`; torch knows no others.
            let blank = |c: char| matches!(c, ' ' | '\t'..='\r');
            let word: std::borrow::Cow<'a, str> = if word.contains(blank) {
                word.replace(blank, "").into()
            } else {
                word.into()
            };
            if !word.is_empty() {
                tokens.push(word);
            }
            let (separator, more) = more.split_at(more.len().min(1));
            if !separator.is_empty() {
                tokens.push(separator.into());
            }
            rest = more;
        }
        Self(tokens)
    }

    fn get(&self, at: usize) -> Result<&str, SettingsError> {
        let token = self.0.get(at).ok_or(SettingsError::Truncated)?;
        Ok(token)
    }

    /// Calls `read` for every key with its place; `read` answers with the place of
    /// the last token it used. The token after that is a comma, or should be.
    fn each_key(
        &self,
        mut read: impl FnMut(&str, usize) -> Result<usize, SettingsError>,
    ) -> Result<(), SettingsError> {
        let mut at = 0;
        while let Some(key) = self.0.get(at) {
            at = read(key, at)? + 2;
        }
        Ok(())
    }

    /// Passes over a key that another reading takes; answers like `skip`.
    fn skip_known(&self, key: &str, at: usize) -> Result<usize, SettingsError> {
        if KEYS.contains(&key) {
            self.skip(at)
        } else {
            Err(SettingsError::UnknownKey(key.to_owned()))
        }
    }

    /// The place of the last token of the value of the key at `at`.
    fn skip(&self, at: usize) -> Result<usize, SettingsError> {
        let mut at = at + 2;
        if self.get(at)? == "[" {
            while self.get(at)? != "]" {
                at += 1;
            }
        }
        Ok(at)
    }

    fn boolean(&self, key: &'static str, at: usize) -> Result<bool, SettingsError> {
        match self.get(at)? {
            "True" => Ok(true),
            "False" => Ok(false),
            other => Err(SettingsError::NotABool {
                key,
                value: other.to_owned(),
            }),
        }
    }

    /// As `std::stoull`: a sign, digits, and then anything.
    fn integer(&self, key: &'static str, at: usize) -> Result<u64, SettingsError> {
        let token = self.get(at)?;
        let not_a_number = || SettingsError::NotANumber {
            key,
            value: token.to_owned(),
        };
        let (negative, digits) = match token.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, token.strip_prefix('+').unwrap_or(token)),
        };
        let end = digits
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(digits.len());
        let value: u64 = digits[..end].parse().map_err(|_| not_a_number())?;
        Ok(if negative {
            value.wrapping_neg()
        } else {
            value
        })
    }

    /// As `std::stod`: the longest beginning that is a number, and then anything.
    fn float(&self, key: &'static str, at: usize) -> Result<f64, SettingsError> {
        let token = self.get(at)?;
        float_prefix(token).ok_or_else(|| SettingsError::NotANumber {
            key,
            value: token.to_owned(),
        })
    }
}

fn float_prefix(token: &str) -> Option<f64> {
    let lower = token.to_ascii_lowercase();
    let unsigned = lower.strip_prefix(['+', '-']).unwrap_or(&lower);
    for word in ["infinity", "inf", "nan"] {
        if unsigned.starts_with(word) {
            let sign = lower.len() - unsigned.len();
            return lower[..sign + word.len()].parse().ok();
        }
    }
    if let Some(digits) = unsigned.strip_prefix("0x")
        && let Some(value) = hexadecimal(digits)
    {
        return Some(if lower.starts_with('-') {
            -value
        } else {
            value
        });
    }
    let end = decimal_length(&lower);
    let value: f64 = lower[..end].parse().ok()?;
    // C reports a number that is too large or too small for a double as an error.
    let zero = !lower[..end]
        .split('e')
        .next()?
        .contains(|c: char| ('1'..='9').contains(&c));
    (value.is_finite() && (zero || value.is_normal())).then_some(value)
}

/// C's hexadecimal floats, without the `0x`; no setting sensibly uses them.
fn hexadecimal(text: &str) -> Option<f64> {
    let (mut value, mut scale, mut any) = (0.0, None, false);
    let mut rest = text.chars();
    let mut exponent = 0;
    while let Some(c) = rest.next() {
        match (c, scale) {
            ('.', None) => scale = Some(1.0),
            ('p', _) if any => {
                let digits = rest.as_str();
                let sign = usize::from(digits.starts_with(['+', '-']));
                let length = digits[sign..].find(|c: char| !c.is_ascii_digit());
                let end = length.map_or(digits.len(), |length| sign + length);
                exponent = digits[..end].parse().unwrap_or(0);
                break;
            }
            _ => {
                let Some(digit) = c.to_digit(16) else { break };
                any = true;
                value = value * 16.0 + f64::from(digit);
                scale = scale.map(|scale| scale / 16.0);
            }
        }
    }
    let value = value * scale.unwrap_or(1.0) * 2.0_f64.powi(exponent);
    (any && value.is_finite()).then_some(value)
}

/// How many bytes of `text` are a decimal number with optional fraction and exponent.
fn decimal_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |mut at: usize| {
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        at
    };
    let start = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    let mut end = digits(start);
    let mut any = end > start;
    if bytes.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        any |= fraction > end + 1;
        end = fraction;
    }
    if !any {
        return 0;
    }
    if bytes.get(end) == Some(&b'e') {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(end + 1 + sign);
        if exponent > end + 1 + sign {
            end = exponent;
        }
    }
    end
}

/// `0.5` or `40G`; `None` for anything that is not positive and finite to the last character.
fn read_reserve(token: &str) -> Option<Reserve> {
    let number = token.strip_suffix(['G', 'g']);
    let text = number.unwrap_or(token).to_ascii_lowercase();
    if text.is_empty() || decimal_length(&text) != text.len() {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    if !value.is_finite() || value <= 0.0 {
        return None;
    }
    Some(match number {
        Some(_) => Reserve::Gibibytes(value),
        None => Reserve::Fraction(value),
    })
}

/// MiB to bytes, capped so that it fits.
fn mebibytes(count: u64) -> u64 {
    count.min(u64::MAX / MIB) * MIB
}

fn require(
    key: &'static str,
    value: &impl ToString,
    holds: bool,
    must: impl FnOnce() -> String,
) -> Result<(), SettingsError> {
    if holds {
        Ok(())
    } else {
        Err(out_of_range(key, value, must))
    }
}

fn out_of_range(
    key: &'static str,
    value: &impl ToString,
    must: impl FnOnce() -> String,
) -> SettingsError {
    SettingsError::OutOfRange {
        key,
        value: value.to_string(),
        must: must(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, SettingsError> {
        text.parse()
    }

    /// The results of torch 2.15.0 for the same strings.
    #[test]
    fn torch_takes_these() {
        for text in [
            "",
            "max_split_size_mb:20",
            "max_split_size_mb:100MB",
            "max_split_size_mb:-1",
            "garbage_collection_threshold:0.5x",
            "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
            " max_split_size_mb : 2 0 0 ",
            "max_split_size_mb:200,",
            "expandable_segments_reserve:abc",
            "expandable_segments_reserve_by_class:[a:1G,b:x]",
            "backend:native",
            "max_split_size_mb:+100",
            "roundup_power2_divisions:[>:4]",
            "roundup_power2_divisions:[]",
            "roundup_power2_divisions:[1:0]",
            "max_split_size_mb,200;expandable_segments",
        ] {
            assert_eq!(read(text).err(), None, "{text}");
        }
    }

    #[test]
    fn torch_refuses_these() {
        for text in [
            "max_split_size_mb:19",
            "max_split_size_mb=100",
            "garbage_collection_threshold:1",
            "roundup_power2_divisions:3",
            "roundup_power2_divisions:[3:2]",
            "roundup_power2_divisions:[1:2",
            "roundup_power2_divisions:0",
            "expandable_segments:true",
            "foo:1",
            "max_split_size_mb",
            "max_split_size_mb:",
            "large_segment_size_mb:10",
            "large_segment_size_mb:30,max_split_size_mb:25",
            "max_split_size_mb:200;expandable_segments:True",
            "garbage_collection_threshold:1e-320",
            "garbage_collection_threshold:nan",
            "per_process_memory_fraction:1.5",
            "per_process_memory_fraction:0x40",
            "expandable_segments_reserve:[a:1G]",
            "expandable_segments_reserve_by_class:[a:1G",
            "backend:foo",
            "pinned_num_register_threads:3",
            ",",
            "max_split_size_mb:0x100",
            "max_split_size_mb:99999999999999999999",
            "throw_on_cudamalloc_oom:1",
            "max_split_size_mb:[200]",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn divisions_leave_gaps_between_their_boundaries() {
        let settings = read("roundup_power2_divisions:[4:2,64:8,>:16]").unwrap();
        let mut expected = [16; INTERVALS];
        expected[..=6].copy_from_slice(&[2, 2, 2, 0, 0, 0, 8]);
        assert_eq!(settings.roundup_power2_divisions, expected);
    }

    #[test]
    fn a_change_forgets_some_settings_and_keeps_others() {
        let mut settings = read(
            "expandable_segments:True,max_split_size_mb:100,large_segment_size_mb:32,\
             garbage_collection_threshold:0.5,throw_on_cudamalloc_oom:True",
        )
        .unwrap();
        assert_eq!(settings.max_non_split_rounding, 32 << 20);
        settings.update("").unwrap();
        let kept = Settings {
            expandable_segments: true,
            large_segment_size: 32 << 20,
            max_non_split_rounding: 32 << 20,
            throw_on_cudamalloc_oom: true,
            ..Settings::default()
        };
        assert_eq!(settings, kept);
    }

    #[test]
    fn what_was_read_before_an_error_stays() {
        let mut settings = Settings::default();
        assert!(settings.update("max_split_size_mb:50,foo:1").is_err());
        assert_eq!(settings.max_split_size, 50 << 20);
    }

    #[test]
    fn reserves_are_fractions_or_gibibytes() {
        let text = "expandable_segments_reserve:0.5,\
                    expandable_segments_reserve_by_class:[kv:2G,odd:1e20G]";
        let settings = read(text).unwrap();
        let total = 8 << 30;
        let reserve = settings.expandable_segments_reserve.unwrap();
        assert_eq!(reserve.bytes(total), 4 << 30);
        let classes = settings.expandable_segments_reserve_by_class;
        assert_eq!(classes["kv"].bytes(total), 2 << 30);
        assert_eq!(classes["odd"].bytes(total), u64::MAX);
    }
}
