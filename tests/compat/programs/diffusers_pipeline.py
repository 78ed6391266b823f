# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stable Diffusion as a pipeline: text encoder, U-Net, scheduler and decoder, 10 steps of 512 × 512, fp16."""

import argparse

import torch
from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, StableDiffusionPipeline, UNet2DConditionModel
from tokenizers import Tokenizer, models
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast

parser = argparse.ArgumentParser()
parser.add_argument("--offload", action="store_true")
arguments = parser.parse_args()
words = {"<pad>": 0, "a": 1, "cat": 2}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")), pad_token="<pad>", model_max_length=77
)
unet = UNet2DConditionModel(
    sample_size=64, cross_attention_dim=768, attention_head_dim=8, block_out_channels=(320, 640, 1280, 1280)
)
decoder = AutoencoderKL(
    block_out_channels=(128, 256, 512, 512),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    layers_per_block=2,
)
encoder = CLIPTextModel(
    CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12)
)
pipeline = StableDiffusionPipeline(
    vae=decoder.half(),
    text_encoder=encoder.half(),
    tokenizer=tokenizer,
    unet=unet.half(),
    scheduler=DPMSolverMultistepScheduler(),
    safety_checker=None,
    feature_extractor=None,
    requires_safety_checker=False,
)
pipeline.set_progress_bar_config(disable=True)
if arguments.offload:
    pipeline.enable_model_cpu_offload()
else:
    pipeline.to("cuda")
images = pipeline("a cat", num_inference_steps=10, height=512, width=512).images
print(f"done, {images[0].size}, {torch.cuda.max_memory_allocated()} bytes at most")
