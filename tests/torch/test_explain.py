# SPDX-License-Identifier: MIT OR Apache-2.0
"""`tonnage explain` with the real torch: fifteen pains, each named, each with a fix that keeps its word."""

import json
import subprocess
from dataclasses import dataclass, field

import pytest
from conftest import PYTHON, SCRIPTS, TONNAGE, environment
from test_run import printed

SCENARIOS = SCRIPTS.parent / "scenarios"


@dataclass
class Scenario:
    """A script, how to run it dry, and what must be said of it."""

    script: str
    options: list
    # The codes in order; where the run fails, the first is the class of the failure.
    codes: list
    # The finding that names the marked line; None for the largest holder.
    named: str | None
    # The finding whose proposal is applied and checked.
    fixed: str
    # How: "script" (FIXED=1), "paste" (the line that is printed), "device" (`--capacity`).
    how: str = "script"
    # Figure of the verdict that the promise is held against.
    measure: str = field(init=False)

    def __post_init__(self):
        self.measure = {"script": "allocated", "paste": "reserved", "device": "device"}[self.how]
        if self.fixed == "TN105":
            self.measure = "device"


PAINS = [
    Scenario("p01_fragments", ["--capacity", "9GiB"], ["TN102"], "TN102", "TN102", "paste"),
    Scenario("p02_holder", ["--capacity", "19120MiB"], ["TN101"], None, "TN101", "device"),
    Scenario("p03_will_it_fit", ["--capacity", "10752MiB"], ["TN101", "TN204"], "TN204", "TN101", "device"),
    Scenario("p04_long_sample", ["--capacity", "12GiB"], ["TN101", "TN202"], "TN202", "TN202"),
    Scenario("p05_logits", ["--gpu", "h100-80gb"], ["TN203"], "TN203", "TN203"),
    Scenario("p06_evaluation", ["--capacity", "11GiB"], ["TN101", "TN205"], "TN205", "TN205"),
    Scenario("p07_first_step", ["--capacity", "9GiB"], ["TN101", "TN204"], "TN204", "TN204"),
    Scenario("p08_load", ["--gpu", "rtx-4090"], ["TN206"], "TN206", "TN206"),
    Scenario("p09_checkpointing", ["--gpu", "rtx-4090"], ["TN204", "TN210"], "TN204", "TN204"),
    Scenario("p10_cache_at_start", ["--capacity", "32GiB"], ["TN101", "TN207"], "TN207", "TN207"),
    Scenario("p11_cache_grows", ["--capacity", "16910MiB"], ["TN101", "TN207"], "TN207", "TN207"),
    Scenario("p12_still_referenced", ["--gpu", "rtx-4090"], ["TN209"], "TN209", "TN209"),
    Scenario("p13_wake_up", ["--capacity", "14GiB"], ["TN102"], "TN102", "TN102", "paste"),
    Scenario("p14_decoder", ["--gpu", "rtx-4090"], ["TN208"], "TN208", "TN208"),
    Scenario("p15_contexts", ["--capacity", "9GiB", "--gpus", "4"], ["TN105"], "TN105", "TN105"),
    Scenario("p16_leak", ["--gpu", "rtx-4090"], ["TN201"], "TN201", "TN201"),
]


def explain(recording, *options):
    """What `tonnage explain` says of a recording, with its exit code."""
    line = [TONNAGE, "explain", str(recording), *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment(NO_COLOR="1"))
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


def marked(script):
    """The number of the line with the mark."""
    lines = script.read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith("# <- here")]
    return number


def measured(verdict, measure):
    """The peak of the first device."""
    device = verdict["devices"][0]
    if measure == "device":
        return max(device["at_peak"]["used"] for device in verdict["devices"] if device["device"] == 0)
    return device[f"peak_{measure}"]


@pytest.mark.parametrize("pain", PAINS, ids=lambda pain: pain.script)
def test_a_pain_is_named_and_its_fix_keeps_its_word(tonnage, pain):
    script = SCENARIOS / f"{pain.script}.py"
    command = [PYTHON, str(script)]
    run = tonnage(None, options=pain.options, command=command)
    fails = pain.codes[0].startswith("TN1")
    assert run.code == (1 if fails else 0), run.err
    code, text = explain(run.recording, "--json")
    told = json.loads(text)
    assert code == (1 if fails else 0)
    assert told["outcome"] == ("out_of_memory" if fails else "ran")

    findings = told["findings"]
    assert [finding["code"] for finding in findings][: len(pain.codes)] == pain.codes
    if pain.named:
        place = next(finding["place"] for finding in findings if finding["code"] == pain.named)
    else:
        place = told["holders"][0]["place"]
    assert (place["file"], place["line"]) == (str(script), marked(script))

    if pain.codes[0] in ("TN101", "TN105"):  # no setting can help
        assert all(fix["measure"] != "reserved" for fix in told["fixes"])
    (fix,) = [fix for fix in told["fixes"] if fix["code"] == pain.fixed]
    assert fix["measure"] == pain.measure
    assert fix["peak_after"] < fix["peak_before"] or pain.how != "script"
    options, variables = pain.options, {}
    if pain.how == "script":
        variables["FIXED"] = "1"
    elif pain.how == "paste":
        name, value = fix["paste"].split("=", 1)
        variables[name] = value
    else:
        options = fix["paste"].split()
    fixed = tonnage(None, options=options, command=command, **variables)
    assert fixed.code == 0, fixed.err
    assert fix["fits"] in (True, None)
    peak = measured(fixed.verdict, pain.measure)
    promised = fix["peak_after"]
    print(f"{pain.script}: promised {promised}, measured {peak}, {peak / promised - 1:+.3%}")
    assert abs(peak / promised - 1) <= 0.01
    if pain.how == "device":
        # Not a byte is promised that is not needed.
        less = ["--capacity", str(int(promised * 0.99))]
        assert tonnage(None, options=less, command=command).code == 1

    # What its user sees: one screen, and nothing proposed that is done already.
    _, text = explain(run.recording)
    assert len(text.splitlines()) <= 20, text
    _, text = explain(fixed.recording, "--json")
    again = json.loads(text)
    if pain.fixed not in ("TN207", "TN208"):  # what was halved can be halved again
        assert fix["advice"] not in [fix["advice"] for fix in again["fixes"]]


@pytest.mark.parametrize(
    "script, arguments, options",
    [
        # Short, so that the peak lies in the step, where all three are alive.
        ("transformer.py", ["16", "16", "16"], []),
        ("llama_8b.py", [], ["--gpu", "h100-80gb"]),
    ],
)
def test_totals_are_those_of_the_shapes_to_the_byte(tonnage, script, arguments, options):
    run = tonnage(script, *arguments, options=options)
    assert run.code == 0, run.err
    told = json.loads(explain(run.recording, "--json")[1])
    assert told["moment"]["phase"] == "step"
    totals = {part["category"]: part for part in told["categories"]}
    for category in ("weights", "gradients", "optimizer_state"):
        computed = printed(run.err, category.replace("_", " "))
        assert totals[category]["bytes"] == computed, category
        # By torch's own word, all of it.
        assert totals[category]["exact_bytes"] == computed, category
    # And all categories together are what torch's counter says.
    parts = sum(part["block_bytes"] for part in told["categories"])
    assert parts == told["on_device"]["allocated"] == printed(run.err, "peak allocated")
