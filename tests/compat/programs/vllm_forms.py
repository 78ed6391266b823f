# SPDX-License-Identifier: MIT OR Apache-2.0
"""vLLM with other forms of a model of Llama's shape: adapters, quantised weights, speculation, embeddings, images."""

import argparse
import json
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
PROMPTS = [{"prompt_token_ids": list(range(1, 6))}, {"prompt_token_ids": list(range(100))}]


def model(layers, **more):
    Path("model").mkdir(exist_ok=True)
    Path("model/config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers} | more))


def start(**more):
    from vllm import LLM

    settings = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 4096, "enforce_eager": True}
    return LLM(model="model", **(settings | more))


def generate(llm, prompts=PROMPTS, **more):
    from vllm import SamplingParams

    for result in llm.generate(prompts, SamplingParams(max_tokens=8, detokenize=False), **more):
        answer = result.outputs[0]
        print(f"{len(result.prompt_token_ids)} tokens in, {len(answer.token_ids)} out: {answer.finish_reason}")


def lora(layers):
    """An adapter of rank 16 of two projections, with random values."""
    import torch
    from safetensors.torch import save_file
    from vllm.lora.request import LoRARequest

    Path("adapter").mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    Path("adapter/adapter_config.json").write_text(json.dumps(settings | {"task_type": "CAUSAL_LM"}))
    tensors = {}
    for layer in range(layers):
        for name, rows in (("q_proj", 4096), ("v_proj", 1024)):
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{place}.lora_A.weight"] = torch.randn(16, 4096, dtype=torch.bfloat16)
            tensors[f"{place}.lora_B.weight"] = torch.randn(rows, 16, dtype=torch.bfloat16)
    save_file(tensors, "adapter/adapter_model.safetensors")
    model(layers)
    llm = start(enable_lora=True, max_lora_rank=16)
    generate(llm, lora_request=LoRARequest("adapter", 1, "adapter"))


def fp8(layers):
    model(layers)
    generate(start(quantization="fp8"))


def kv_fp8(layers):
    model(layers)
    generate(start(kv_cache_dtype="fp8"))


def awq(layers):
    model(layers, quantization_config=AWQ, torch_dtype="float16")
    generate(start())


def gptq(layers):
    model(layers, quantization_config=GPTQ, torch_dtype="float16")
    generate(start())


def bitsandbytes(layers):
    """Quantised while it is loaded, so there has to be a checkpoint."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model(layers)
    with torch.device("cpu"):
        made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"), dtype=torch.bfloat16)
    made.save_pretrained("model")
    generate(start(quantization="bitsandbytes", load_format="auto"))


def prefix(layers):
    """The second of two equal prompts finds the blocks of the first."""
    from vllm import SamplingParams

    model(layers)
    llm = start(enable_prefix_caching=True)
    for _ in range(2):
        (result,) = llm.generate(PROMPTS[1:], SamplingParams(max_tokens=8, detokenize=False))
        print(f"{result.num_cached_tokens} of 100 tokens were there, {len(result.outputs[0].token_ids)} out")


def ngram(layers):
    model(layers)
    settings = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    generate(start(speculative_config=settings))


def embed(layers):
    model(layers, architectures=["LlamaModel"])
    llm = start(runner="pooling")
    for result in llm.embed(PROMPTS):
        print(f"{len(result.prompt_token_ids)} tokens in, {len(result.outputs.embedding)} numbers out")


def image(layers):
    """A model with a vision tower; the prompts are text."""
    from tokenizers import Tokenizer, models
    from transformers import CLIPImageProcessor, LlavaProcessor, PreTrainedTokenizerFast

    text = CONFIG | {"num_hidden_layers": layers}
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "image_size": 336,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
        "projection_dim": 768,
    }
    whole = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": 32000,
        "image_seq_length": 576,
        "text_config": text,
        "vision_config": vision,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "torch_dtype": "bfloat16",
    }
    Path("model").mkdir(exist_ok=True)
    Path("model/config.json").write_text(json.dumps(whole))
    words = {f"w{number}": number for number in range(128256)}
    words["<image>"] = words.pop("w32000")
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="w0", additional_special_tokens=["<image>"])
    size = {"shortest_edge": 336}
    images = CLIPImageProcessor(size=size, crop_size={"height": 336, "width": 336})
    processor = LlavaProcessor(images, tokenizer, patch_size=14, vision_feature_select_strategy="default")
    processor.save_pretrained("model")
    generate(start(skip_tokenizer_init=False))


if __name__ == "__main__":
    forms = (lora, fp8, kv_fp8, awq, gptq, bitsandbytes, prefix, ngram, embed, image)
    parser = argparse.ArgumentParser()
    parser.add_argument("form", choices=[form.__name__ for form in forms])
    parser.add_argument("--layers", type=int, default=32)
    arguments = parser.parse_args()
    globals()[arguments.form](arguments.layers)
    print("done")
