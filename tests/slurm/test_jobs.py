# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs with forecasts from dry runs, as sbatch and srun hand them to a real Slurm."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from cluster import SHARDS
from jobs import JOBS

GIB = 1 << 30


@pytest.fixture(autouse=True)
def fill_from_forecasts(site, store):
    site.set("fill", store.folder)


def shards_of(store, name: str) -> int:
    """Whole shards that hold the forecast of a job."""
    (role,) = store.forecasts[name]["roles"]
    return -(-role["bound"] // GIB)


def test_the_forecasts_are_of_what_the_jobs_hold(store):
    for name, (_, held) in JOBS.items():
        (role,) = store.forecasts[name]["roles"]
        assert held * GIB < role["peak"] < (held + 1) * GIB, name
    assert shards_of(store, "small") == 30
    assert shards_of(store, "ranks") == 42


def test_stock_slurm_leaves_an_impossible_job_pending(stock):
    answer = stock.run("sbatch", "--gres=shard:100", "--wrap", "sleep 60")
    assert answer.code == 0
    stock.wait(lambda: stock.state(answer.job) == "PENDING Resources", "the job was not tried")
    time.sleep(2)
    # Nothing else runs, and still it waits. No message reports that it waits forever.
    assert stock.state(answer.job) == "PENDING Resources"
    assert stock.run("sinfo", "-h", "-o", "%T").out == "idle\n"
    assert answer.err == ""
    stock.cancel_all()


@pytest.mark.parametrize("why", ["asked", "forecast"])
@pytest.mark.parametrize("client", ["sbatch", "srun", "other client"])
def test_an_impossible_job_is_refused_at_the_terminal_with_the_reason(site, store, client, why):
    words = ["--gres=shard:100"] if why == "asked" else []
    job = "unknown" if why == "asked" else "huge"
    command = ["python", "train.py", "5"] if why == "asked" else JOBS["huge"][0]
    match client:
        case "sbatch":
            answer = site.run("sbatch", *words, f"{job}.sh", folder=store.jobs)
        case "srun":
            answer = site.run("srun", *words, *command, folder=store.jobs)
        case _:
            answer = site.other_client("sbatch", *words, f"{job}.sh", folder=store.jobs)
    assert answer.code == 1, answer
    assert site.cluster.run("squeue", "-h").out == ""
    if why == "forecast":
        assert "the job does not fit: it takes up to 96." in answer.err
    elif site.cluster.shards_per_task:
        assert "requests 100 shards, the largest GPU has 79: its task would get parts of several GPUs" in answer.err
    else:
        assert "requests 100.00 GiB of one GPU, the largest has 79.00 GiB: it would never start" in answer.err


def test_six_jobs_share_three_gpus_where_each_took_one(site, store):
    def submit_six(*words: str) -> Counter[tuple[str, int]]:
        answers = [site.run("sbatch", *words, "small.sh", folder=store.jobs) for _ in range(6)]
        gpus: Counter[tuple[str, int]] = Counter()
        for answer in answers:
            assert answer.code == 0, answer
            site.cluster.wait_until_running(answer.job)
            # No job has parts of two GPUs.
            (held,) = site.cluster.read_holdings(answer.job).items()
            gpus.update(dict([held]))
        site.cluster.cancel_all()
        return gpus

    assert sorted(submit_six("--gres=gpu:1").values()) == [SHARDS] * 6
    assert sorted(submit_six().values()) == [60, 60, 60]


@pytest.mark.parametrize("client", ["run", "other_client"])
def test_two_ranks_get_the_same_of_two_gpus(site, store, client):
    answer = getattr(site, client)("sbatch", "ranks.sh", folder=store.jobs)
    assert answer.code == 0, answer
    site.cluster.wait_until_running(answer.job)
    held = site.cluster.read_holdings(answer.job)
    if site.cluster.shards_per_task:
        assert held == {("gpu1", 0): 42, ("gpu1", 1): 42}
        assert "tonnage: requests 41." in answer.err
        assert "AdminComment=tonnage fill 2x42 " in site.cluster.shown(answer.job)
    else:
        # Slurm 22.05 has no request for it, so the job goes on as it was and its user gets a message.
        assert held == {}
        assert "request whole ones (--gpus=2)" in answer.err


def test_ranks_that_fit_on_one_gpu_get_two_of_them(site, store):
    if not site.cluster.shards_per_task:
        pytest.skip("Slurm 22.05 has no shards of several GPUs")
    answer = site.run("sbatch", "pair.sh", folder=store.jobs)
    assert answer.code == 0, answer
    site.cluster.wait_until_running(answer.job)
    # By itself Slurm takes 60 of the first, where NCCL refuses the second rank.
    assert site.cluster.read_holdings(answer.job) == {("gpu1", 0): 30, ("gpu1", 1): 30}


def test_tasks_of_srun_are_not_multiplied(site, store):
    answer = site.run("sbatch", "srun_ranks.sh", folder=store.jobs)
    assert answer.code == 0, answer
    assert "NumTasks=2" not in site.cluster.shown(answer.job)
    assert "nothing was written into the job: Slurm has no shards for a task that uses several GPUs" in answer.err


@pytest.mark.parametrize("mode", ["advise", "fill", "enforce"])
def test_modes(site, store, mode):
    site.set(mode, store.folder)
    known = site.run("sbatch", "small.sh", folder=store.jobs)
    assert known.code == 0, known
    site.cluster.wait_until_running(known.job)
    if mode == "advise":
        assert "tonnage: the job needs 29." in known.err
        assert site.cluster.read_holdings(known.job) == {}
    else:
        assert "tonnage: requests 29." in known.err
        assert list(site.cluster.read_holdings(known.job).values()) == [30]
        assert known.err.count("tonnage:") == 1
    # A job that requests no GPU gets none, and gets a message only if it may start PyTorch.
    unknown = site.run("sbatch", "unknown.sh", folder=store.jobs)
    assert unknown.code == 0, unknown
    assert "no forecast of this job, and it requests no GPU" in unknown.err
    site.cluster.wait_until_running(unknown.job)
    assert site.cluster.read_holdings(unknown.job) == {}
    whole = site.run("sbatch", "--gres=gpu:1", "unknown.sh", folder=store.jobs)
    assert (whole.code, whole.err) == (0, "")
    cpu = site.run("srun", "-n2", "hostname")
    assert (cpu.code, cpu.err.count("tonnage")) == (0, 0), cpu
    refused = site.run("sbatch", "huge.sh", folder=store.jobs)
    assert refused.code == (0 if mode == "advise" else 1), refused
    assert "the job does not fit" in refused.err


@pytest.mark.parametrize("mode", ["advise", "fill", "enforce"])
@pytest.mark.parametrize("client", ["run", "other_client"])
def test_a_number_of_ones_own(site, store, mode, client):
    site.set(mode, store.folder)
    per_task = site.cluster.shards_per_task

    def sbatch(shards: int):
        option = f"--tres-per-task=gres/shard:{shards}" if per_task else f"--gres=shard:{shards}"
        return getattr(site, client)("sbatch", "--ntasks=1", option, "small.sh", folder=store.jobs)

    less = sbatch(20)
    assert "the job requests 20.00 GiB of each GPU and may take 29." in less.err
    assert less.code == (1 if mode == "enforce" else 0)
    exact = sbatch(30)
    assert (exact.code, exact.err) == (0, "")
    more = sbatch(60)
    assert more.code == 0
    assert "the job requests 60.00 GiB of each GPU, 29." in more.err
    # It stays the user's own.
    site.cluster.wait_until_running(more.job)
    assert list(site.cluster.read_holdings(more.job).values()) == [60]


def test_settings_that_are_broken_lose_no_job(site, store):
    for text, code in [("mode = fill", 0), ('mode = "enforce"\nstore = 5\n', 1), (None, 0)]:
        site.settings.unlink(missing_ok=True)
        if text:
            site.settings.write_text(text)
        answer = site.run("sbatch", "--gres=gpu:1", "small.sh", folder=store.jobs)
        assert answer.code == code, answer
        assert "tonnage: it could not be asked:" in answer.err
        assert "tonnage.toml" in answer.err


def test_a_mark_of_the_users_own_does_not_pass_the_controller(site, store):
    site.set("enforce", store.folder)
    forged = ["sbatch", "--comment=[tonnage fill 1x1 x]", "--gres=shard:1", "small.sh"]
    answer = site.other_client(*forged, folder=store.jobs)
    assert answer.code == 1, answer
    assert "the job requests 1.00 GiB of each GPU" in answer.err
