# SPDX-License-Identifier: MIT OR Apache-2.0
"""vLLM with an embedding model of the shape of Qwen3-Embedding-0.6B and random weights."""

import json
from pathlib import Path

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 32768,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 151669,
}


def main():
    from vllm import LLM

    Path("model").mkdir(exist_ok=True)
    Path("model/config.json").write_text(json.dumps(CONFIG))
    llm = LLM(
        model="model",
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=4096,
        enforce_eager=True,
        runner="pooling",
        convert="embed",
    )
    prompts = [{"prompt_token_ids": list(range(1, 6))}, {"prompt_token_ids": list(range(100))}]
    for result in llm.embed(prompts):
        print(f"{len(result.prompt_token_ids)} tokens in, {len(result.outputs.embedding)} numbers out")
    print("done")


if __name__ == "__main__":
    main()
