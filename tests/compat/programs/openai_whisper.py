# SPDX-License-Identifier: MIT OR Apache-2.0
"""openai-whisper: transcribe() 30 s of noise with a model of random weights."""

import numpy as np
import torch
from whisper.model import ModelDimensions, Whisper

model = Whisper(ModelDimensions(80, 1500, 512, 8, 6, 51865, 448, 512, 8, 6)).cuda()
audio = np.random.randn(16000 * 30).astype("float32") * 0.01
result = model.transcribe(audio, language="en", fp16=True)
assert isinstance(result["text"], str)
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
