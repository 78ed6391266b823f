# SPDX-License-Identifier: MIT OR Apache-2.0
"""A slice of the random programs, and some seconds of the stress; CONTRIBUTING.md reports how to run more of both."""

import json
import os

import random_programs
from programs import compiled

GIB = 1 << 30


def test_the_verdict_says_what_the_device_said():
    assert random_programs.check(count=150, first=0, jobs=os.cpu_count()) == {}


def test_nothing_is_lost_where_processes_die_and_become_others(run, tmp_path):
    program = compiled("stress", tmp_path)
    seconds, seed = os.environ.get("STRESS_SECONDS", "5"), os.environ.get("STRESS_SEED", "1")
    # A worker that is killed after a refused request may be out of memory: one run on this device is enough.
    ran = run(program, seconds, seed, 24 * GIB, options=["--stop-at-oom"])
    said = json.loads("".join(ran.lines))
    print(said)
    # It must have been hard on the ledger to prove anything.
    assert min(said["served"], said["refused"]) > 500
    assert min(said["killed"], said["became"], said["forked"]) > 3
    assert said["over"] == 0, "more was held than there is"
    assert said["false_refusals"] == 0, "refused although it fits"
    assert said["left"] == 0, "not everything came back"
    assert 0 <= ran.least_free[0] < 24 * GIB
