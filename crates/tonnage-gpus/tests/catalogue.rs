// SPDX-License-Identifier: MIT OR Apache-2.0
//! The embedded catalogue against the rules a contributor's entry has to keep, and the finding of
//! GPUs by name.

use std::collections::BTreeMap;

use tonnage_gpus::{Catalogue, Figure, Gpu, Known};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The same rule as the crate's, written again so that a slip there does not hide here.
fn plain(name: &str) -> String {
    name.to_lowercase()
        .chars()
        .filter(|c| !" -_".contains(*c))
        .collect()
}

/// Every figure of a GPU as its key, its source and how well it is known.
fn figures(gpu: &Gpu) -> Vec<(&'static str, String, Known)> {
    fn one<T>(key: &'static str, figure: &Figure<T>) -> (&'static str, String, Known) {
        (key, figure.source.clone(), figure.known)
    }
    let limits = &gpu.limits;
    let mut all = vec![
        one("total_memory", &gpu.total_memory),
        one("context", &gpu.context),
        one("sm_count", &gpu.sm_count),
        one("l2_bytes", &gpu.l2_bytes),
        one("memory_bus_bits", &gpu.memory_bus_bits),
        one("memory_clock_khz", &gpu.memory_clock_khz),
        one("clock_khz", &gpu.clock_khz),
        one("shared_per_block", &limits.shared_per_block),
        one("shared_per_block_optin", &limits.shared_per_block_optin),
        one("shared_per_sm", &limits.shared_per_sm),
        one(
            "shared_reserved_per_block",
            &limits.shared_reserved_per_block,
        ),
        one("registers_per_sm", &limits.registers_per_sm),
        one("registers_per_block", &limits.registers_per_block),
        one("threads_per_sm", &limits.threads_per_sm),
        one("blocks_per_sm", &limits.blocks_per_sm),
    ];
    all.extend(
        gpu.nccl_channels
            .as_ref()
            .map(|channels| one("nccl_channels", channels)),
    );
    all
}

#[test]
fn the_gpus_that_were_promised_are_there() {
    let catalogue = Catalogue::embedded();
    for id in [
        "t4",
        "v100-16gb",
        "v100-32gb",
        "a10",
        "a10g",
        "a100-40gb",
        "a100-80gb",
        "l4",
        "l40s",
        "rtx3090",
        "rtx4090",
        "rtx5090",
        "h100-80gb",
        "h100-pcie",
        "h100-nvl",
        "h200",
        "gh200",
        "b200",
        "a6000",
        "rtx-6000-ada",
        "rtx2080ti",
        "rtx3060",
        "rtx4060ti-16gb",
        "mi300x",
    ] {
        assert_eq!(catalogue.find(id).unwrap().id, id);
    }
}

#[test]
fn contexts_that_were_read_later_are_in_the_catalogue() {
    let catalogue = Catalogue::embedded();
    for (id, mib) in [
        ("rtx4090", 386),
        ("a100-80gb", 414),
        ("h100-80gb", 516),
        ("t4", 102),
    ] {
        let context = &catalogue.find(id).unwrap().context;
        assert_eq!(
            (context.value, context.known),
            (mib * MIB, Known::Read),
            "{id}"
        );
    }
}

#[test]
fn a_slice_is_a_part_of_its_gpu() {
    let catalogue = Catalogue::embedded();
    let mut names = Vec::new();
    for slice in catalogue.slices() {
        let (whole, profile) = slice.id.split_once('/').unwrap();
        let whole = catalogue.find(whole).unwrap();
        assert_eq!(catalogue.find(&slice.id).unwrap(), slice);
        assert_eq!(catalogue.find(&slice.name).unwrap(), slice);
        assert_eq!(slice.name, format!("{} MIG {profile}", whole.name));
        assert!(
            slice.total_memory.value <= whole.total_memory.value,
            "{}",
            slice.id
        );
        assert!(slice.sm_count.value <= whole.sm_count.value, "{}", slice.id);
        assert!(slice.context.value <= whole.context.value, "{}", slice.id);
        // The profile's own size, as a GPU's is near the size on its box.
        let marketed = f64::from(slice.marketed_gb) * 1e9;
        let ratio = slice.total_memory.value as f64 / marketed;
        assert!((0.93..1.11).contains(&ratio), "{}: {ratio}", slice.id);
        // Slices of compute and of memory of one GPU have different names.
        names.push(slice.id.clone());
    }
    let count = names.len();
    names.dedup();
    assert_eq!((names.len(), count > 30), (count, true));
    let one = catalogue.find("h100-80gb/1g.10gb").unwrap();
    assert_eq!(
        (one.total_memory.value, one.sm_count.value),
        (10_468_982_784, 16)
    );
    let error = catalogue.find("h100/1g.11gb").unwrap_err().to_string();
    assert!(error.contains("h100-80gb/1g.10gb"), "{error}");
}

#[test]
fn no_name_means_two_gpus() {
    let catalogue = Catalogue::embedded();
    let mut owner: BTreeMap<String, &str> = BTreeMap::new();
    for gpu in catalogue.gpus() {
        let names = [&gpu.id, &gpu.name].into_iter().chain(&gpu.aliases);
        for name in names {
            let key = plain(name);
            assert!(!key.is_empty(), "{} has an empty name", gpu.id);
            let before = owner.insert(key, &gpu.id);
            assert!(
                before.is_none_or(|other| other == gpu.id),
                "{name:?} names both {before:?} and {}",
                gpu.id
            );
        }
    }
    for short in ["a100", "v100", "rtx6000"] {
        assert!(
            !owner.contains_key(short),
            "{short} is ambiguous and an alias"
        );
    }
}

#[test]
fn an_alias_says_something_the_id_does_not() {
    for gpu in Catalogue::embedded().gpus() {
        let mut seen = vec![plain(&gpu.id), plain(&gpu.name)];
        for alias in &gpu.aliases {
            let key = plain(alias);
            assert!(
                !seen.contains(&key),
                "{}: {alias:?} is there already",
                gpu.id
            );
            seen.push(key);
        }
    }
}

#[test]
fn every_figure_has_a_source_that_can_be_followed() {
    for gpu in Catalogue::embedded().gpus() {
        for (key, source, _) in figures(gpu) {
            let at = format!("{}: {key}", gpu.id);
            assert!(source.len() > 12, "{at}: {source:?} is no source");
            assert_eq!(source.trim(), source, "{at}");
            assert!(!source.contains('\n'), "{at}");
            for folder in ["/opt/", "/home/", "/tmp/"] {
                assert!(!source.contains(folder), "{at}: a path in {source:?}");
            }
        }
    }
}

#[test]
fn capacities_are_whole_pages_near_the_size_on_the_box() {
    for gpu in Catalogue::embedded().gpus() {
        let total = gpu.total_memory.value;
        assert_eq!(total % (64 * KIB), 0, "{}", gpu.id);
        // The box counts GB or GiB as it likes; the driver keeps some back. Every reading so far
        // lies within this.
        let marketed = u64::from(gpu.marketed_gb) * 1_000_000_000;
        let ratio = total as f64 / marketed as f64;
        assert!((0.95..1.08).contains(&ratio), "{}: {ratio}", gpu.id);
    }
}

#[test]
fn contexts_are_what_contexts_are() {
    for gpu in Catalogue::embedded()
        .gpus()
        .iter()
        .filter(|gpu| gpu.supported)
    {
        let context = gpu.context.value;
        assert_eq!(context % MIB, 0, "{}", gpu.id);
        assert!((64 * MIB..1024 * MIB).contains(&context), "{}", gpu.id);
        // The rule the file extrapolates by, with room on both sides: an entry far off it is a
        // slip of a digit or a reading with libraries loaded.
        let threads = u64::from(gpu.sm_count.value) * u64::from(gpu.limits.threads_per_sm.value);
        let each = context as f64 / threads as f64 / KIB as f64;
        assert!(
            (1.8..2.7).contains(&each),
            "{}: {each} KiB a thread",
            gpu.id
        );
    }
}

#[test]
fn device_figures_are_plausible() {
    for gpu in Catalogue::embedded().gpus() {
        let id = &gpu.id;
        assert!((16..400).contains(&gpu.sm_count.value), "{id}");
        assert!((MIB..256 * MIB).contains(&gpu.l2_bytes.value), "{id}");
        assert_eq!(gpu.memory_bus_bits.value % 32, 0, "{id}");
        assert!((128..=8192).contains(&gpu.memory_bus_bits.value), "{id}");
        assert!(
            (500_000..20_000_000).contains(&gpu.memory_clock_khz.value),
            "{id}"
        );
        assert!(
            (1_000_000..3_000_000).contains(&gpu.clock_khz.value),
            "{id}"
        );
        let limits = &gpu.limits;
        assert!(
            limits.shared_per_block.value <= limits.shared_per_block_optin.value,
            "{id}"
        );
        assert_eq!(
            limits.shared_per_block_optin.value % KIB + limits.shared_per_sm.value % KIB,
            0,
            "{id}"
        );
        assert!(
            limits.shared_per_block_optin.value + limits.shared_reserved_per_block.value
                <= limits.shared_per_sm.value,
            "{id}"
        );
        assert!(
            limits.registers_per_block.value <= limits.registers_per_sm.value,
            "{id}"
        );
        assert_eq!(limits.threads_per_sm.value % 32, 0, "{id}");
        assert!(limits.blocks_per_sm.value > 0, "{id}");
    }
}

#[test]
fn an_unsupported_gpu_says_why_and_a_supported_one_does_not() {
    for gpu in Catalogue::embedded().gpus() {
        assert_eq!(gpu.supported, gpu.reason.is_none(), "{}", gpu.id);
    }
    let catalogue = Catalogue::embedded();
    let mi300x = catalogue.find("MI300X").unwrap();
    assert!(!mi300x.supported);
    assert!(mi300x.reason.as_deref().unwrap().contains("ROCm"));
}

#[test]
fn names_are_found_however_they_are_typed() {
    let catalogue = Catalogue::embedded();
    for (name, id) in [
        ("h100", "h100-80gb"),
        ("H100", "h100-80gb"),
        ("h100_sxm", "h100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("nvidia a100-sxm4-40gb", "a100-40gb"),
        ("RTX 4090", "rtx4090"),
        ("4090", "rtx4090"),
        ("rtx_6000_ada", "rtx-6000-ada"),
        ("  T4 ", "t4"),
        ("RTX A6000", "a6000"),
    ] {
        assert_eq!(catalogue.find(name).unwrap().id, id, "{name:?}");
    }
}

#[test]
fn a_short_name_of_several_gpus_lists_them() {
    let catalogue = Catalogue::embedded();
    let error = catalogue.find("A100").unwrap_err();
    assert!(error.ambiguous);
    assert_eq!(
        error.to_string(),
        "\"A100\" stands for more than one GPU: use a100-40gb or a100-80gb"
    );
    assert_eq!(catalogue.find("RTX 6000").unwrap_err().candidates.len(), 3);
}

#[test]
fn a_slip_of_the_finger_gets_a_suggestion() {
    let catalogue = Catalogue::embedded();
    for (name, id) in [
        ("h10", "h100-80gb"),
        ("h1000", "h100-80gb"),
        ("rtx409", "rtx4090"),
        ("rtx4900", "rtx4090"),
        ("a100-80gbb", "a100-80gb"),
        ("l40", "l40s"),
        ("b20", "b200"),
        ("h100x8", "h100-80gb"),
    ] {
        let error = catalogue.find(name).unwrap_err();
        assert!(!error.ambiguous);
        assert!(
            error.candidates.iter().any(|candidate| candidate == id),
            "{name:?} suggests {:?}",
            error.candidates
        );
        assert!(error.candidates.len() <= 3);
        assert!(error.to_string().contains("did you mean"), "{error}");
    }
    let nothing = catalogue.find("banana-split").unwrap_err();
    assert_eq!(
        nothing.to_string(),
        "no GPU in the catalogue is called \"banana-split\""
    );
}

#[test]
fn nothing_panics_on_odd_names() {
    let catalogue = Catalogue::embedded();
    let long = "h100".repeat(100_000);
    for name in [
        "",
        " ",
        "-",
        "___",
        "\0",
        "\u{202e}h100",
        "é",
        "İ",
        "ß",
        "🜚",
        "h\n100",
        "\"",
        "{}",
        "%s",
        long.as_str(),
    ] {
        if let Err(error) = catalogue.find(name) {
            assert!(error.to_string().len() < 400, "{name:.20?}");
        }
    }
    assert!(catalogue.find("").is_err());
}

#[test]
fn a_gpu_goes_to_json_with_its_sources() {
    let catalogue = Catalogue::embedded();
    let json = serde_json::to_value(catalogue.find("h100").unwrap()).unwrap();
    assert_eq!(json["compute_capability"], "9.0");
    assert_eq!(json["total_memory"]["known"], "read");
    assert_eq!(json["total_memory"]["value"], 85_017_493_504_u64);
    assert_eq!(json["context"]["known"], "read");
    assert_eq!(json["limits"]["shared_per_sm"]["value"], 233_472);
}

#[test]
fn a_gpu_holds_a_job_beside_its_own_context() {
    let catalogue = Catalogue::embedded();
    let ids = |need, context| -> Vec<&str> {
        let holding = catalogue.that_hold(need, context);
        holding.iter().map(|gpu| gpu.id.as_str()).collect()
    };
    let gpu = catalogue.find("a100-40gb").unwrap();
    let (total, context) = (gpu.total_memory.value, gpu.context.value);
    assert!(ids(total, context).contains(&"a100-40gb"));
    assert!(!ids(total + 1, context).contains(&"a100-40gb"));
    // The job alone needs the more, the less of it was for a context elsewhere.
    assert!(!ids(total, context - 1).contains(&"a100-40gb"));
    let all = catalogue.that_hold(1, 0);
    assert!(all.iter().all(|gpu| gpu.supported));
    assert!(all.is_sorted_by_key(|gpu| gpu.total_memory.value));
    assert!(catalogue.that_hold(u64::MAX, 0).is_empty());
}
