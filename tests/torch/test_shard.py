# SPDX-License-Identifier: MIT OR Apache-2.0
"""A model that is sharded inside one process against the same model on live ranks, with the lines that were printed."""

import pytest
from conftest import PYTHON, SCRIPTS
from test_changes import by_hand, run

TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node"]


@pytest.mark.parametrize(
    ("script", "change", "ranks"),
    [
        ("changed_gpt.py", "fully-shard", 4),
        ("changed_gpt.py", "shard-gradients", 2),
        ("changed_llama.py", "fully-shard", 2),
    ],
)
def test_rank_0_is_as_on_live_ranks(tmp_path, script, change, ranks):
    text = (SCRIPTS / script).read_text()
    (tmp_path / script).write_text(text)
    gpus = ["--gpus", str(ranks)]
    plain, _ = run(tmp_path, "plain", command=[PYTHON, script])
    alone, errors = run(tmp_path, "alone", *gpus, "--change", change, command=[PYTHON, script])
    (told,) = alone["changes"]
    assert told["applied"] and alone["outcome"] == "fits", errors
    (tmp_path / "sharded.py").write_text(by_hand(text, told, "# made"))
    live, errors = run(tmp_path, "live", *gpus, command=[*TORCHRUN, str(ranks), "sharded.py"])
    assert live["outcome"] == "fits" and len(live["devices"]) == ranks, errors
    (one,) = alone["devices"]
    assert one["peak_allocated"] < plain["devices"][0]["peak_allocated"]
    # Every rank of these models is like rank 0.
    for rank in live["devices"]:
        assert rank["peak_allocated"] == one["peak_allocated"]
        assert rank["peak_reserved"] == one["peak_reserved"]


def test_a_program_that_is_distributed_already_is_left_alone(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(
        "import torch\n"
        "torch.distributed.init_process_group('nccl', init_method='tcp://127.0.0.1:0', rank=0, world_size=1)\n"
        + (SCRIPTS / "changed_gpt.py").read_text()
    )
    verdict, errors = run(tmp_path, "own", "--gpus", "2", "--change", "fully-shard", command=[PYTHON, "ranks.py"])
    (told,) = verdict["changes"]
    assert told["already"] and not told["applied"], errors
    assert verdict["outcome"] == "fits", errors
