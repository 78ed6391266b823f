# SPDX-License-Identifier: MIT OR Apache-2.0
"""Megatron-core's GPT: tensor and pipeline parallel, with its own DDP and distributed optimizer."""

import argparse
import os

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

LENGTH, VOCABULARY, BATCH = 256, 4096, 2

parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int, default=1)
parser.add_argument("--pp", type=int, default=1)
arguments = parser.parse_args()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
parallel_state.initialize_model_parallel(arguments.tp, arguments.pp)
tensor_parallel.model_parallel_cuda_manual_seed(1)
config = TransformerConfig(
    num_layers=4,
    hidden_size=512,
    num_attention_heads=8,
    bf16=True,
    params_dtype=torch.bfloat16,
    pipeline_dtype=torch.bfloat16,
    tensor_model_parallel_size=arguments.tp,
    pipeline_model_parallel_size=arguments.pp,
    gradient_accumulation_fusion=False,
    finalize_model_grads_func=finalize_model_grads,
)
model = GPTModel(
    config,
    get_gpt_layer_local_spec(),
    VOCABULARY,
    LENGTH,
    pre_process=parallel_state.is_pipeline_first_stage(),
    post_process=parallel_state.is_pipeline_last_stage(),
    share_embeddings_and_output_weights=False,
).cuda()
model = model.bfloat16()
model = DistributedDataParallel(
    config, DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=False), model
)
optimizer = get_megatron_optimizer(
    OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, use_distributed_optimizer=True, clip_grad=1.0), [model]
)


def forward(iterator, model):
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device="cuda")
    positions = torch.arange(LENGTH, device="cuda").expand(BATCH, -1)
    mask = torch.ones(1, 1, LENGTH, LENGTH, device="cuda").triu(1).bool()
    losses = model(tokens, positions, mask, labels=tokens)
    return losses, lambda output: (output.float().mean(), {"loss": output.detach().mean()})


for _ in range(2):
    optimizer.zero_grad()
    model.zero_grad_buffer()
    get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=None,
        model=[model],
        num_microbatches=4,
        seq_length=LENGTH,
        micro_batch_size=BATCH,
        forward_only=False,
    )
    optimizer.step()
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
print(f"done, rank {rank} of {size}, {torch.cuda.max_memory_allocated()} bytes at most\n", end="", flush=True)
torch.distributed.destroy_process_group()
