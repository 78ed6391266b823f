# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs train.py of a checkout of torchtitan, with random tokens and a tokenizer that only has the size of Llama 3's.

    torchtitan_run.py CHECKOUT [options of train.py]
"""

import sys
from pathlib import Path

import torch

VOCABULARY = 128256
checkout = Path(sys.argv.pop(1))
scripts = [checkout / "torchtitan" / "train.py", checkout / "train.py"]
script = next(one for one in scripts if one.exists())
sys.path[:0] = [str(checkout), str(script.parent)]


class Tokenizer:
    n_words = VOCABULARY
    eos_id = 0

    def __init__(self, *arguments, **named):
        pass

    def get_vocab_size(self):
        return VOCABULARY


class Tokens:
    """Batches without end."""

    def __init__(self, batch, length, named=False):
        self.shape, self.named = (batch, length), named

    def __iter__(self):
        while True:
            inputs, labels = (torch.randint(VOCABULARY, self.shape) for _ in range(2))
            yield ({"input": inputs} if self.named else inputs), labels

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


if script.parent == checkout:
    import train

    train.build_tokenizer = Tokenizer
    train.build_hf_data_loader = lambda name, path, tokenizer, batch, length, *more: Tokens(batch, length)
    config = train.JobConfig()
    config.parse_args()
    train.main(config)
    torch.distributed.destroy_process_group()
else:
    import runpy

    from torchtitan.protocols import train_spec

    find = train_spec.get_train_spec

    def get_train_spec(name):
        spec = find(name)
        if hasattr(spec, "tokenizer_cls"):
            spec.tokenizer_cls = Tokenizer
        else:
            spec.build_tokenizer_fn = Tokenizer
        spec.build_dataloader_fn = make_loader
        return spec

    def make_loader(*arguments, job_config, **named):
        training = job_config.training
        if hasattr(training, "local_batch_size"):
            return Tokens(training.local_batch_size, training.seq_len, named=True)
        return Tokens(training.batch_size, training.seq_len)

    train_spec.get_train_spec = get_train_spec
    sys.argv[0] = str(script)
    runpy.run_path(str(script), run_name="__main__")
