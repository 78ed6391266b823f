# SPDX-License-Identifier: MIT OR Apache-2.0
"""vLLM with a model of a published shape, random weights and the settings of a log; two short prompts.

    python vllm_log.py MODEL SETTINGS

SETTINGS is a JSON object of arguments of `vllm.LLM`; with `served`, what is left out is as `vllm serve` has it, with
`ray`, Ray gets the number of GPUs. Sizes are those of public config.json; of Gemma 4, those that transformers'
conversion of its weights has.
"""

import inspect
import json
import sys
from pathlib import Path

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
LONG = {
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
LLAMA2 = {
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3 = QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "num_key_value_heads": 8,
}
MODELS = {
    "llama-3-8b": LLAMA,
    "llama-3.1-8b": LLAMA | LONG,
    "llama-2-7b": LLAMA | LLAMA2 | {"intermediate_size": 11008, "num_key_value_heads": 32},
    "llama-2-70b": LLAMA
    | LLAMA2
    | {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_hidden_layers": 80,
    },
    "qwen2.5-0.5b": QWEN2
    | {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_hidden_layers": 24},
    "qwen2.5-1.5b": QWEN2
    | {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_hidden_layers": 28},
    "qwen2.5-14b-distilled": QWEN2
    | {
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "max_position_embeddings": 131072,
        "num_attention_heads": 40,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
    },
    "qwen2.5-32b": QWEN2
    | {
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_attention_heads": 40,
        "num_hidden_layers": 64,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
    },
    "qwen3-0.6b": QWEN3
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_hidden_layers": 28},
    "qwen3-32b": QWEN3
    | {
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_attention_heads": 64,
        "num_hidden_layers": 64,
        "tie_word_embeddings": False,
    },
    "qwen3-4b": QWEN3
    | {"hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "num_hidden_layers": 36},
    "qwen3-235b-a22b-fp8": QWEN3
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "mlp_only_layers": [],
        "moe_intermediate_size": 1536,
        "norm_topk_prob": True,
        "num_attention_heads": 64,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 94,
        "num_key_value_heads": 4,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        "tie_word_embeddings": False,
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 201088,
    },
    "llama-3.2-11b-vision": {
        "architectures": ["MllamaForConditionalGeneration"],
        "model_type": "mllama",
        "image_token_index": 128256,
        "text_config": LLAMA
        | LONG
        | {
            "model_type": "mllama_text_model",
            "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
            "num_hidden_layers": 40,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {
            "model_type": "mllama_vision_model",
            "attention_heads": 16,
            "hidden_act": "gelu",
            "hidden_size": 1280,
            "image_size": 448,
            "intermediate_layers_indices": [3, 7, 15, 23, 30],
            "intermediate_size": 5120,
            "max_num_tiles": 4,
            "num_global_layers": 8,
            "num_hidden_layers": 32,
            "patch_size": 14,
            "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
            "torch_dtype": "bfloat16",
            "vision_output_dim": 7680,
        },
    },
}
MODELS["gemma-4-26b-a4b"] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "audio_config": None,
    "boi_token_id": 255999,
    "dtype": "bfloat16",
    "eoi_token_id": 258882,
    "image_token_id": 258880,
    "text_config": {
        "model_type": "gemma4_text",
        "attention_k_eq_v": True,
        "dtype": "bfloat16",
        "enable_moe_block": True,
        "final_logit_softcapping": 30.0,
        "global_head_dim": 512,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2816,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 2112,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 5,
        "max_position_embeddings": 262144,
        "moe_intermediate_size": 704,
        "num_attention_heads": 16,
        "num_experts": 128,
        "num_global_key_value_heads": 2,
        "num_hidden_layers": 30,
        "num_key_value_heads": 8,
        "num_kv_shared_layers": 0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 1024,
        "tie_word_embeddings": True,
        "top_k_experts": 8,
        "use_bidirectional_attention": "vision",
        "vocab_size": 262144,
    },
    "tie_word_embeddings": True,
    "video_token_id": 258884,
    "vision_config": {
        "model_type": "gemma4_vision",
        "default_output_length": 280,
        "dtype": "bfloat16",
        "global_head_dim": 72,
        "head_dim": 72,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "position_embedding_size": 10240,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
        "standardize": True,
        "use_clipped_linears": False,
    },
    "vision_soft_tokens_per_image": 280,
}
# For models that see images.
IMAGES = {
    "llama-3.2-11b-vision": {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_processor_type": "MllamaImageProcessor",
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "max_image_tiles": 4,
        "resample": 2,
        "rescale_factor": 0.00392156862745098,
        "size": {"height": 448, "width": 448},
    }
}


# Tokens that stand for images and sounds, by the names that transformers' processor knows them by.
GEMMA4_TOKENS = {
    "boi_token": ("<|image>", 255999),
    "boa_token": ("<|audio>", 256000),
    "image_token": ("<|image|>", 258880),
    "audio_token": ("<|audio|>", 258881),
    "eoi_token": ("<image|>", 258882),
    "eoa_token": ("<audio|>", 258883),
}


def tokenizer(words, named=None):
    """One word for each token, but for those that have a name."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    named = named or {}
    vocabulary = {f"w{number}": number for number in range(words)}
    for text, number in named.values():
        del vocabulary[f"w{number}"]
        vocabulary[text] = number
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    made.decoder = decoders.WordPiece()
    extra = {"extra_special_tokens": {name: text for name, (text, _) in named.items()}} if named else {}
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="w0", eos_token="w2", **extra)


def write_gemma4_processor():
    """As transformers' conversion of the weights writes it; vLLM makes its profiling run with images."""
    from transformers import (
        Gemma4AudioFeatureExtractor,
        Gemma4ImageProcessor,
        Gemma4Processor,
        Gemma4VideoProcessor,
    )

    words = tokenizer(262144, GEMMA4_TOKENS | {"video_token": ("<|video|>", 258884)})
    words.pad_token = "w1"
    Gemma4Processor(
        image_processor=Gemma4ImageProcessor(
            image_seq_length=280, do_normalize=False, max_soft_tokens=280, pooling_kernel_size=3
        ),
        feature_extractor=Gemma4AudioFeatureExtractor(),
        video_processor=Gemma4VideoProcessor(),
        tokenizer=words,
        image_seq_length=280,
    ).save_pretrained("model")


def as_served(settings):
    """With the defaults of `vllm serve`, which are not those of the class LLM."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    # The class LLM makes an object of it first.
    plain = {name: value for name, value in settings.items() if name != "compilation_config"}
    arguments = EngineArgs(model="model", load_format="dummy", **plain)
    scheduler = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER).scheduler_config
    names = ("max_num_batched_tokens", "max_num_seqs")
    return {name: getattr(scheduler, name) for name in names} | settings


def generate(llm, prompts):
    """As the version takes prompts of tokens."""
    from vllm import SamplingParams

    if "prompt_token_ids" in inspect.signature(llm.generate).parameters and not hasattr(llm, "encode"):
        return llm.generate(prompt_token_ids=prompts, sampling_params=SamplingParams(max_tokens=8))
    prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
    return llm.generate(prompts, SamplingParams(max_tokens=8, detokenize=False))


def main():
    model, settings = sys.argv[1], json.loads(sys.argv[2])
    Path("model").mkdir(exist_ok=True)
    Path("model/config.json").write_text(json.dumps(MODELS[model]))
    if model in IMAGES:
        Path("model/preprocessor_config.json").write_text(json.dumps(IMAGES[model]))

    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    if model.startswith("gemma-4"):
        write_gemma4_processor()
    else:
        if "skip_tokenizer_init" in EngineArgs.__dataclass_fields__:
            settings["skip_tokenizer_init"] = True
        if "vocab_size" in MODELS[model]:
            # Versions that do not know the option, and 0.9.2, do not start without one.
            tokenizer(MODELS[model]["vocab_size"]).save_pretrained("model")
    if settings.pop("ray", False):
        import ray

        # Ray 2.8 counts the folders of /proc/driver/nvidia/gpus, which a machine without a GPU does not have.
        ray.init(num_gpus=settings["tensor_parallel_size"])
    if settings.pop("served", False):
        settings = as_served(settings)
        print(f"as served: {settings}", file=sys.stderr)
    llm = LLM(model="model", load_format="dummy", **settings)
    for result in generate(llm, [list(range(1, 6)), list(range(100))]):
        print(f"{len(result.prompt_token_ids)} tokens in, {len(result.outputs[0].token_ids)} out", file=sys.stderr)
    print("both prompts are answered", file=sys.stderr)


if __name__ == "__main__":
    main()
