# SPDX-License-Identifier: MIT OR Apache-2.0
"""openai-whisper: transcribe() 30 s of noise with a model of random weights."""

import numpy as np
import torch
from whisper.model import ModelDimensions, Whisper

model = Whisper(ModelDimensions(80, 1500, 512, 8, 6, 51865, 448, 512, 8, 6)).cuda()
audio = np.random.randn(16000 * 30).astype("float32") * 0.01
# One temperature and 32 tokens: noise would be decoded with six temperatures, as on a GPU, which takes minutes here.
result = model.transcribe(audio, language="en", fp16=True, temperature=0.0, sample_len=32)
assert isinstance(result["text"], str)
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
