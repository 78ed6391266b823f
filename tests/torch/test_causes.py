# SPDX-License-Identifier: MIT OR Apache-2.0
"""Causes and advice of programs that no rule was written for. The truth of each stands before it and follows from its
source: what makes its peak, and what advice would break it."""

import json
import re
from dataclasses import dataclass

import pytest
from conftest import PYTHON
from test_explain import explain

DETACH = r"detach|\.item\(\)"
MICRO = r"micro-batch|forward passes at once"


@dataclass
class Program:
    name: str
    source: str
    # The first finding: its code, and words of its sentence. Empty: any finding is accepted.
    code: str = ""
    words: str = ""
    # Words that neither a sentence nor advice may contain, and those that the advice must contain.
    wrong: str = DETACH
    advice: str = ""
    # A holder that the recording must name.
    held: str = ""


PROGRAMS = [
    # One forward pass of six layers, which the script calls one after another, each with its own loss beside its
    # output. Truth: activations; checkpointing each layer helps; backward() of a single layer is impossible.
    Program(
        "layers",
        """
class Layer(nn.Module):
    def __init__(self, d=512):
        super().__init__()
        self.up, self.down = nn.Linear(d, 8 * d), nn.Linear(8 * d, d)

    def forward(self, x):
        h = torch.relu(self.up(x))
        return x + self.down(h), h.mean()


layers = nn.ModuleList(Layer() for _ in range(6)).cuda()
opt = torch.optim.AdamW(layers.parameters())
for _ in range(2):
    y, aux = torch.randn(16384, 512, device="cuda"), 0.0
    for layer in layers:
        y, a = layer(y)
        aux = aux + a
    (y.square().mean() + aux).backward()
    opt.step()
    opt.zero_grad()
""",
        "TN213",
        wrong=f"{MICRO}|{DETACH}",
        advice="checkpoint",
    ),
    # Each parameter and its gradient keep each other. Truth: five of six models stay, with their gradients.
    Program(
        "models_left",
        """
for trial in range(6):
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)], nn.Tanh()).cuda()
    loss = model(torch.randn(64, 1024, device="cuda")).square().mean()
    loss.backward(create_graph=True)
    del model, loss
""",
        "TN209",
        "5 earlier models.*parameter and its .grad",
        advice="zero_grad|reference",
    ),
    # Twice stores its own output on ctx: output, node, ctx, output. Truth: every step stays, and no variable has it.
    # Detached at the line of the forward function, the layer before it would get no gradient.
    Program(
        "cycle_of_a_function",
        """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x * 2
        ctx.x, ctx.out = x, out
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


net = nn.Linear(1024, 1024).cuda()
for step in range(12):
    Twice.apply(net(torch.randn(8192, 1024, device="cuda"))).mean().backward()
    net.zero_grad()
""",
        "TN211",
        "reference cycle",
        advice="save_for_backward|gc.collect",
    ),
    # The differences of all pairs of points, and what the backward pass of their square makes of them.
    Program(
        "differences",
        """
a = torch.rand(8, 2048, 3, device="cuda", requires_grad=True)
b = torch.rand(8, 2048, 3, device="cuda")
shift = nn.Linear(3, 3).cuda()
opt = torch.optim.SGD([a], lr=0.1)
for _ in range(3):
    moved = shift(a)
    d = (moved[:, :, None] - b[:, None]).pow(2).sum(-1)
    loss = d.min(2).values.mean() + d.min(1).values.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "TN208",
        r"backward pass of one line, \S*script.py:10",
    ),
    # Two buffers of pictures in float32 are nearly everything. Smaller types or the host help.
    Program(
        "replay_buffer",
        """
class ReplayBuffer:
    def __init__(self, n, shape):
        self.obs = torch.zeros(n, *shape, device="cuda")
        self.next_obs = torch.zeros(n, *shape, device="cuda")

    def sample(self, k):
        i = torch.randint(0, self.obs.shape[0], (k,), device="cuda")
        return self.obs[i], self.next_obs[i]


buffer = ReplayBuffer(50_000, (4, 84, 84))
q = nn.Sequential(nn.Flatten(), nn.Linear(28224, 512), nn.ReLU(), nn.Linear(512, 6)).cuda()
opt = torch.optim.Adam(q.parameters())
for _ in range(4):
    obs, following = buffer.sample(32)
    with torch.no_grad():
        target = q(following).amax(1)
    loss = (q(obs).amax(1) - target).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "TN222",
        r"`buffer.next_obs` and `buffer.obs`.*float32\[50000, 4, 84, 84\]",
        advice="host",
    ),
    # All batches have eight rows. The second backward pass finds a gradient, and makes another to add to it.
    Program(
        "added_gradient",
        """
model = nn.Linear(4096, 4096).cuda()
opt = torch.optim.Adam(model.parameters())
for _ in range(2):
    model(torch.randn(8, 4096, device="cuda")).mean().backward()
opt.step()
opt.zero_grad()
model(torch.randn(8, 4096, device="cuda")).mean().backward()
""",
        wrong=f"large sample|TN202|{DETACH}",
    ),
    # The state of a resumed optimizer was made by torch.load, at line 12. Its step is at line 15.
    Program(
        "resumed_step",
        """
model = nn.Linear(4096, 4096).cuda()
opt = torch.optim.Adam(model.parameters())
model(torch.randn(8, 4096, device="cuda")).mean().backward()
opt.step()
opt.zero_grad()
torch.save(opt.state_dict(), "opt.pt")
del opt
opt = torch.optim.Adam(model.parameters())
opt.load_state_dict(torch.load("opt.pt", map_location="cuda"))
for _ in range(2):
    model(torch.randn(8, 4096, device="cuda")).mean().backward()
    opt.step()
    opt.zero_grad()
""",
        "TN204",
        "script.py:15",
        wrong=f"step( is)? at \\S*script.py:12|{DETACH}",
    ),
    # Python collects the garbage of five rounds right after the peak, before any search. Truth: they are a cycle.
    Program(
        "collected_cycle",
        """
import gc


class Sample:
    def __init__(self, value):
        self.value, self.me = value, self


gc.disable()
model = nn.Linear(1024, 1024).cuda()
for step in range(8):
    out = model(torch.randn(16384, 1024, device="cuda"))
    Sample(out.detach() * 2)
    out.mean().backward()
    model.zero_grad()
    if step == 4:
        gc.collect()
""",
        "TN201",
        "cycle",
        advice="cycle|gc.collect",
    ),
    # Each round adds a hook, and each hook remembers the batch of its round. Truth: the hooks are to be removed.
    Program(
        "hooks_pile_up",
        """
net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()


def attach(batch):
    def probe(module, inputs, output):
        probe.ratio = (inputs[0].detach().std() / batch.std()).item()

    net[2].register_forward_hook(probe)


for _ in range(8):
    batch = torch.randn(65536, 512, device="cuda")
    attach(batch)
    net(batch).mean().backward()
    net.zero_grad()
""",
        "TN201",
        "batch",
        advice=r"handle.remove\(\)",
    ),
    # A dictionary keeps the model, gradients and optimizer of each fold. Truth: four of five are never used again.
    Program(
        "folds",
        """
class Trainer:
    def __init__(self):
        self.model = nn.Linear(4096, 4096, bias=False).cuda()
        self.opt = torch.optim.Adam(self.model.parameters())

    def fit(self):
        for _ in range(3):
            loss = self.model(torch.randn(64, 4096, device="cuda")).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()


def cross_validate():
    trainers = {}
    for fold in range(5):
        trainer = Trainer()
        trainer.fit()
        trainers[fold] = trainer


cross_validate()
""",
        "TN223",
        "`trainers` in cross_validate.. keeps 1.00 GiB",
        advice="trainers",
    ),
    # Objects that refer to each other wait for a collection that never comes. Truth: they are a cycle, and no variable
    # has them.
    Program(
        "cycle_of_objects",
        """
import gc


class Sample:
    def __init__(self, value):
        self.value, self.owner = value, Owner(self)


class Owner:
    def __init__(self, sample):
        self.sample = sample


gc.disable()
model = nn.Linear(1024, 1024).cuda()
for _ in range(12):
    out = model(torch.randn(16384, 1024, device="cuda"))
    Sample(out.detach() * 2)
    out.mean().backward()
    model.zero_grad()
""",
        "TN201",
        "cycle",
        advice="cycle|gc.collect",
    ),
    # A list of a module keeps each result of its first layer with its graph. The loss goes through that result, so only
    # a copy may lose its graph.
    Program(
        "attribute_of_a_module",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.kept = nn.Linear(1024, 1024), nn.Linear(1024, 1024), []

    def forward(self, x):
        self.kept.append(self.first(x))
        return self.second(self.kept[-1])


net = Net().cuda()
for _ in range(16):
    net(torch.randn(16384, 1024, device="cuda")).square().mean().backward()
    net.zero_grad()
""",
        "TN201",
        "kept",
        wrong=r"detach\(\)",
        advice="copy",
    ),
    # The graph keeps the input. The result and the argument of backward() are as large, and only variables keep them.
    Program(
        "argument_of_backward",
        """
model = nn.Linear(1024, 1024).cuda()
for _ in range(4):
    x = torch.randn(32768, 1024, device="cuda", requires_grad=True)
    result = model(x)
    given = torch.randn_like(result)
    result.backward(gradient=given)
    model.zero_grad()
""",
        wrong=f"TN213|{DETACH}",
        held="x.grad",
    ),
    # A table that a closure remembers grows by a detached output with every step.
    Program(
        "closure",
        """
def remember():
    seen = {}

    def keep(key, value):
        seen[key] = value.detach().clone()

    return keep


keep = remember()
model = nn.Linear(1024, 1024).cuda()
for step in range(16):
    out = model(torch.randn(16384, 1024, device="cuda"))
    out.mean().backward()
    model.zero_grad()
    keep(step, out)
""",
        "TN201",
        "seen",
        wrong=MICRO,
        advice="host",
    ),
    # Healthy: a generator and a discriminator, trained in turn. Their passes belong together, one given the other's
    # result; nothing is to be detached or done piece by piece.
    Program(
        "adversaries",
        """
maker = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 4096)).cuda()
critic = nn.Sequential(nn.Linear(4096, 2048), nn.LeakyReLU(), nn.Linear(2048, 1)).cuda()
makers, critics = (torch.optim.Adam(one.parameters()) for one in (maker, critic))
for _ in range(4):
    real, made = torch.randn(8192, 4096, device="cuda"), maker(torch.randn(8192, 128, device="cuda"))
    critics.zero_grad()
    (critic(made.detach()).mean() - critic(real).mean()).backward()
    critics.step()
    makers.zero_grad()
    critic(made).mean().neg().backward()
    makers.step()
""",
        wrong=f"{MICRO}|{DETACH}|no_grad",
    ),
    # Healthy: two views of one batch meet in one loss; each pass also leaves a number. Neither can go back alone.
    Program(
        "two_views",
        """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(6)])

    def forward(self, x):
        h = self.layers(x)
        return h, h.square().mean()


model = Encoder().cuda()
opt = torch.optim.AdamW(model.parameters())
for _ in range(3):
    a, one = model(torch.randn(16384, 1024, device="cuda"))
    b, two = model(torch.randn(16384, 1024, device="cuda"))
    ((a - b).square().mean() + one + two).backward()
    opt.step()
    opt.zero_grad()
""",
        wrong=f"{DETACH}|add up to the same$",
    ),
    # Healthy: truncated backpropagation of a recurrent cell, whose state is detached where it should be.
    Program(
        "recurrent",
        """
cell, head = nn.GRUCell(512, 512).cuda(), nn.Linear(512, 512).cuda()
opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
state = torch.zeros(8192, 512, device="cuda")
for _ in range(4):
    loss = 0.0
    for _ in range(8):
        state = cell(torch.randn(8192, 512, device="cuda"), state)
        loss = loss + head(state).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
    state = state.detach()
""",
        wrong=f"{MICRO}|{DETACH}",
    ),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_cause_is_named_and_no_advice_does_harm(tonnage, tmp_path, program):
    script = tmp_path / "script.py"
    script.write_text(f"import torch\nfrom torch import nn\n{program.source}")
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    told = json.loads(explain(run.recording, "--json")[1])
    text = explain(run.recording)[1]
    findings = [f"{found['code']} {found['headline']}; {found['sentence']}" for found in told["findings"]]
    advice = [fix["advice"] for fix in told["fixes"]]
    if program.code:
        assert findings and findings[0].startswith(program.code), text
        assert re.search(program.words, findings[0]), text
    assert re.search(program.advice, "\n".join(advice)), text
    assert not program.held or program.held in run.table().column("name").to_pylist()
    said = "\n".join([*findings, *advice, text])
    assert not re.search(program.wrong, said), text
