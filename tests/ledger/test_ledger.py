# SPDX-License-Identifier: MIT OR Apache-2.0
"""Processes that share a device, and programs that are hard on a recorder: `faults.c` has one for each test."""

import os
import subprocess

import pytest

GIB = 1 << 30
MIB = 1 << 20
CONTEXT = 256 * MIB
TOTAL = 24 * GIB


def test_what_the_device_rounded_up_is_not_to_spare(run, faults):
    ran = run(faults, "rounding")
    # 500 requests of 4 MiB and 50 chunks of 64 MiB, each requested with less.
    free = TOTAL - CONTEXT - 500 * 4 * MIB - 50 * 64 * MIB
    assert ran.lines == [f"free {free}"]
    assert ran.least_free == [free]


def test_processes_one_after_the_other_share_a_device_in_time(run, faults):
    ran = run(faults, "in-turn")
    free = TOTAL - CONTEXT - 10 * GIB
    assert ran.lines == [f"free {free}"] * 3
    assert ran.least_free == [free]


def test_managed_memory_may_exceed_the_device(run, faults):
    ran = run(faults, "managed")
    assert ran.lines == ["managed 0, charged 0, type 3", "beside 0, freed 0 1"]
    assert ran.least_free == [2 * MIB]
    assert ran.verdict["outcome"] == "fits"


def test_two_processes_never_hold_more_than_there_is(run, faults):
    assert run(faults, "both").lines == ["together 0, served often"]


def test_a_request_that_fits_is_not_refused(run, faults):
    assert run(faults, "small", capacity="4GiB").lines == ["refused 0"]


def test_a_killed_process_nobody_waited_for_holds_nothing(run, faults):
    ran = run(faults, "zombie")
    assert ran.lines == ["back 18", "served"]


def test_a_program_that_becomes_another_holds_nothing(run, faults):
    ran = run(faults, "exec")
    assert ran.lines == ["served twice"]
    assert ran.least_free == [TOTAL - CONTEXT - 15 * GIB]


def test_a_dead_parent_holds_nothing_while_its_child_is_there(run, faults):
    assert run(faults, "orphan").lines == ["served"]


def test_more_processes_than_slots(run, faults):
    ran = run(faults, "many")
    assert ran.lines == [f"used {20 * GIB + CONTEXT}"]
    assert ran.least_free == [TOTAL - CONTEXT - 20 * GIB]
    assert ran.unknown == ""
    assert len(ran.info()["processes"]) == 601


def test_more_processes_at_one_time_than_slots_is_said(run, faults):
    ran = run(faults, "many-at-once")
    assert "8 processes, because only 512 can use a device at one time" in ran.unknown


# The recorder.


def incomplete(ran, why):
    """The run is reported as incomplete, and its largest figures are right all the same."""
    assert ran.status == 0
    assert why in ran.unknown
    assert ran.least_free == [TOTAL - CONTEXT - 5 * GIB - 2 * MIB]


def test_a_full_disk_does_not_hurt(run, faults, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = f'mount -t tmpfs -o size=3m none "{small}" && exec "$@"'
    alone = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, "sh"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
        pytest.skip("nothing may be mounted here")
    ran = run(faults, "fills", 200_000, before=alone, environment={"TMPDIR": str(small)})
    assert ran.lines == ["survived"]
    incomplete(ran, "because the disk was full")


def test_a_limit_on_file_sizes_does_not_hurt(run, faults):
    # The recording itself is written by the command, which is not under the limit.
    limited = ["sh", "-c", 'ulimit -f 2048 && exec "$@"', "sh"]
    ran = run(*limited, faults, "fills", 200_000)
    assert ran.lines == ["survived"]
    incomplete(ran, "because the limit on the size of files (ulimit -f) was reached")
    assert 10_000 < ran.verdict["events"] < 200_000


def test_a_folder_that_cannot_be_written_to_does_not_hurt(run, faults):
    ran = run(faults, "locked-out", environment={"TMPDIR": "/tmp"})
    assert ran.lines == ["served"]
    assert "because the folder of the run could not be written to" in ran.unknown


def test_children_forked_in_the_middle_of_calls_end(run, faults):
    assert run(faults, "forks").lines == ["hung 0"]


def test_a_file_of_the_programs_own_stays_its_own(run, faults, tmp_path):
    ran = run(faults, "closes-all", tmp_path / "mine")
    assert ran.lines == ["bytes in the program's own file: 0"]
    assert os.path.getsize(tmp_path / "mine") == 0
    assert ran.unknown == ""
