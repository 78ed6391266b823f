# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs whose memory the allocator is measured by: `programs.py NAME`.

Each is a small loop of real torch with the pattern of requests of a kind of job. They run under `tonnage run`, where
nothing is computed, so models have the shapes of real ones. Random lengths come from a fixed seed.
"""

import random
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A block of a decoder."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, cache=None):
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        if cache is not None:
            if cache:
                key, value = torch.cat((cache[0], key), 2), torch.cat((cache[1], value), 2)
            cache[:] = [key, value]
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Decoder(nn.Module):
    """A language model."""

    def __init__(self, layers=12, width=768, heads=12, words=50257, recompute=False):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.recompute = recompute

    def forward(self, words, caches=None):
        x = self.embed(words)
        for number, block in enumerate(self.blocks):
            if self.recompute:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x, None if caches is None else caches[number])
        return self.head(self.norm(x))


def batch(size, length):
    return torch.zeros(size, length, dtype=torch.long, device="cuda")


def train(model, steps, lengths, size, autocast=False, accumulate=1):
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    for step in range(steps):
        for _ in range(accumulate):
            words = batch(size, lengths(step))
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                scores = model(words)
                loss = functional.cross_entropy(scores.flatten(0, 1), words.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def any_length(low, high):
    source = random.Random(1)
    return lambda _: source.randint(low, high)


def train_fixed():
    train(Decoder().cuda(), 6, lambda _: 1024, 8)


def train_variable():
    train(Decoder().cuda(), 12, any_length(128, 1024), 8)


def train_autocast():
    train(Decoder().cuda(), 6, lambda _: 1024, 8, autocast=True, accumulate=3)


def checkpointed():
    train(Decoder(24, 1024, 16, recompute=True).cuda(), 5, lambda _: 1024, 8)


def checkpointed_variable():
    train(Decoder(24, 1024, 16, recompute=True).cuda(), 10, any_length(256, 2048), 4, autocast=True)


class Low(nn.Module):
    """A linear layer that is kept, with a small one beside it that is trained."""

    def __init__(self, kept, rank=16):
        super().__init__()
        self.kept = kept.requires_grad_(False)
        self.down = nn.Linear(kept.in_features, rank, bias=False)
        self.up = nn.Linear(rank, kept.out_features, bias=False)

    def forward(self, x):
        return self.kept(x) + self.up(self.down(x))


def low_rank():
    model = Decoder(24, 2048, 16).to(torch.bfloat16).requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.out = Low(block.qkv), Low(block.out)
    train(model.to("cuda", torch.bfloat16), 8, any_length(256, 1024), 4)


@torch.no_grad()
def generation():
    model = Decoder(24, 2048, 16).to("cuda", torch.bfloat16)
    source = random.Random(2)
    for _ in range(3):
        caches = [[] for _ in model.blocks]
        words = batch(8, source.randint(200, 600))
        for _ in range(60):
            words = model(words, caches)[:, -1:].argmax(-1)


def train_and_generate():
    model = Decoder(12, 1024, 16).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    lengths = any_length(128, 512)
    for step in range(4):
        with torch.no_grad():
            caches = [[] for _ in model.blocks]
            words = batch(16, lengths(step))
            for _ in range(24):
                words = model(words, caches)[:, -1:].argmax(-1)
            del caches
        for _ in range(2):
            words = batch(16, lengths(step))
            loss = functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


class Residual(nn.Module):
    """Two convolutions with what goes past them."""

    def __init__(self, inside, outside, attends):
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(32, inside), nn.GroupNorm(32, outside)
        self.conv_1 = nn.Conv2d(inside, outside, 3, padding=1)
        self.conv_2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.past = nn.Conv2d(inside, outside, 1)
        self.attend = nn.MultiheadAttention(outside, 8, batch_first=True) if attends else None

    def forward(self, x):
        y = self.conv_1(functional.silu(self.norm_1(x)))
        y = self.past(x) + self.conv_2(functional.silu(self.norm_2(y)))
        if self.attend is not None:
            flat = y.flatten(2).transpose(1, 2)
            y = y + self.attend(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(y.shape)
        return y


class Net(nn.Module):
    """A network of the shape of a U, as diffusion has it."""

    def __init__(self, width=128):
        super().__init__()
        widths = [width, 2 * width, 4 * width, 4 * width]
        self.first, self.last = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for level, (inside, outside) in enumerate(zip([width, *widths], widths)):
            self.down.append(Residual(inside, outside, level > 1))
            self.up.insert(0, Residual(2 * outside, inside, level > 1))

    def forward(self, x):
        x, past = self.first(x), []
        for block in self.down:
            x = block(x)
            past.append(x)
            x = functional.avg_pool2d(x, 2)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2)
            x = block(torch.cat((x, past.pop()), 1))
        return self.last(x)


def diffusion_train():
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for size in (64, 64, 96, 64, 64, 96, 64, 64):
        image = torch.zeros(8, 4, size, size, device="cuda")
        loss = functional.mse_loss(model(image + torch.randn_like(image)), image)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def diffusion_sample():
    model = Net(256).to("cuda", torch.bfloat16)
    for height, width in ((64, 64), (96, 64), (64, 96)):
        image = torch.zeros(4, 4, height, width, device="cuda", dtype=torch.bfloat16)
        for _ in range(12):
            with_words, without = model(torch.cat((image, image))).chunk(2)
            image = image - 0.1 * (without + 7.5 * (with_words - without))


def residual_net():
    widths = [64, 256, 512, 1024, 2048]

    def stage(inside, outside, stride):
        middle = outside // 4
        return nn.Sequential(
            nn.Conv2d(inside, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
            nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
            nn.Conv2d(middle, outside, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
        )  # fmt: skip

    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for inside, outside, count in zip(widths, widths[1:], (3, 4, 6, 3)):
        layers += [stage(inside, outside, 1 if inside == 64 else 2)]
        layers += [stage(outside, outside, 1) for _ in range(count - 1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        images, labels = torch.zeros(64, 3, 224, 224, device="cuda"), torch.zeros(64, dtype=torch.long, device="cuda")
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def sharded(streams, lengths):
    """Weights in four parts: a layer is gathered on its own stream, one ahead, its gradients leave on another."""
    width, layers, parts = 2048, 16, 4
    gather = torch.cuda.Stream()
    leave = torch.cuda.Stream() if streams > 2 else gather
    copies = torch.cuda.Stream() if streams > 3 else gather
    numbers = 12 * width * width
    shards = [torch.zeros(numbers // parts, device="cuda") for _ in range(layers)]
    moments = [torch.zeros_like(shard) for shard in shards for _ in range(2)]
    main = torch.cuda.current_stream()

    def whole(layer):
        with torch.cuda.stream(copies):
            half = shards[layer].to(torch.bfloat16)
        gather.wait_stream(copies)
        with torch.cuda.stream(gather):
            weight = torch.empty(numbers, dtype=torch.bfloat16, device="cuda")
            half.record_stream(gather)
        main.wait_stream(gather)
        weight.record_stream(main)
        return weight

    def compute(x, weight):
        qkv = x @ weight[: 3 * width * width].view(width, 3 * width)
        up = qkv[..., :width] @ weight[3 * width * width : 7 * width * width].view(width, 4 * width)
        return x + functional.gelu(up) @ weight[7 * width * width : 11 * width * width].view(4 * width, width)

    for step in range(6):
        x = torch.zeros(8, lengths(step), width, dtype=torch.bfloat16, device="cuda")
        kept, ahead = [], whole(0)
        for layer in range(layers):
            weight, ahead = ahead, whole(min(layer + 1, layers - 1))
            kept.append(x)
            x = compute(x, weight)
            del weight
        grad = torch.zeros_like(x)
        for layer in reversed(range(layers)):
            weight, ahead = ahead, whole(max(layer - 1, 0))
            inside = kept.pop().detach().requires_grad_()
            weight.requires_grad_()
            compute(inside, weight).backward(grad)
            grad = inside.grad
            leave.wait_stream(main)
            with torch.cuda.stream(leave):
                weight.grad.record_stream(leave)
                shard = torch.empty(numbers // parts, dtype=torch.bfloat16, device="cuda")
                full = shard.float()
            main.wait_stream(leave)
            full.record_stream(main)
            moments[2 * layer].mul_(0.9).add_(full)
            shards[layer].sub_(moments[2 * layer])
            del inside, weight, shard, full


def sharded_2_streams():
    sharded(2, lambda _: 1024)


def sharded_3_streams():
    sharded(3, lambda _: 1024)


def sharded_4_streams_variable():
    sharded(4, any_length(256, 1024))


def fully_sharded(lengths):
    """FSDP2 as it is: each block is gathered and its gradients leave on streams that it makes itself."""
    from torch import distributed
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    distributed.init_process_group("nccl")
    torch.cuda.set_device(distributed.get_rank())
    with torch.device("cuda"):
        model = Decoder(24, 1024, 16)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    train(model, 6, lengths, 8)
    distributed.destroy_process_group()


def fsdp2():
    fully_sharded(lambda _: 1024)


def fsdp2_variable():
    fully_sharded(any_length(256, 1024))


def chance():
    """Sizes spread evenly over their powers of two, and no order at all."""
    source = random.Random(3)
    live = []
    for _ in range(6000):
        if len(live) > 400 or (live and source.random() < 0.45):
            live.pop(source.randrange(len(live)))
        live.append(torch.empty(int(2 ** source.uniform(9, 27)), dtype=torch.uint8, device="cuda"))


PROGRAMS = [
    train_fixed,
    train_variable,
    train_autocast,
    checkpointed,
    checkpointed_variable,
    low_rank,
    generation,
    train_and_generate,
    diffusion_train,
    diffusion_sample,
    residual_net,
    sharded_2_streams,
    sharded_3_streams,
    sharded_4_streams_variable,
    fsdp2,
    fsdp2_variable,
    chance,
]

if __name__ == "__main__":
    next(program for program in PROGRAMS if program.__name__ == sys.argv[1])()
