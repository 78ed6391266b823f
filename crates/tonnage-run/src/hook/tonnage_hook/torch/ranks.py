# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lets torch.distributed work where only some ranks of a job run, each in its own process.

Ranks meet in a store that `tonnage run` serves, which answers for those that are not there. Collectives of NCCL are the
stand-in's. The rest is here: groups are made without queries to all other ranks, groups on the CPU have no peers to
connect to, and Python objects go through the store among the ranks that run. The missing ranks are taken to send
what this one sends.
"""

import datetime
import importlib.util
import os
import pickle
import sys
from pathlib import Path

from tonnage_hook.failures import harmless, swallow

STORE_VARIABLE = "TONNAGE_STORE"
# Names of the mesh dimensions whose ranks have different parts of a model.
PIPELINES = {"pp", "pipe", "pipeline", "stage", "stages"}
# The store takes at most 8 MiB at a time.
PIECE = 4 << 20


class Ranks:
    def __init__(self, running, note):
        self.note = note
        self.running = frozenset(running)
        port, self.secret = os.environ[STORE_VARIABLE].split(":")
        self.port = int(port)
        self.store = None
        # How many exchanges of objects there were, by group or by pair of ranks.
        self.turns = {}

    def install(self, torch):
        """Called when torch has been imported."""
        if not torch.distributed.is_available():
            return
        import torch.distributed.distributed_c10d as c10d

        self.c10d = c10d
        self.make_store = torch.distributed.TCPStore
        self.lead_to_store()
        self.tell_of_groups(c10d)
        self.make_groups_alone(c10d)
        self.replace_gloo(c10d)
        self.look_at_meshes()
        self.share_symmetric_memory()
        if hasattr(c10d, "monitored_barrier"):
            # Only gloo has it, and a rank that does not run is never late.
            self.replace(c10d, "monitored_barrier", lambda *arguments, **named: None)
        for name in (
            "all_gather_object",
            "gather_object",
            "broadcast_object_list",
            "scatter_object_list",
            "send_object_list",
            "recv_object_list",
        ):
            if hasattr(c10d, name):
                self.replace(c10d, name, getattr(self, name))

    def replace(self, c10d, name, function):
        """Puts a function in the place of one of torch's, wherever torch has it by now."""
        original = getattr(c10d, name)
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("torch.distributed") and getattr(module, name, None) is original:
                setattr(module, name, function)

    def lead_to_store(self):
        """Every store is a client of ours, whatever address the script gives."""
        store = self.make_store
        connect = store.__init__
        port = self.port

        def lead(self, host_name="", port_=0, world_size=None, is_master=False, *more, **named):
            kept = {"timeout": more[0]} if more else {}
            kept.update({name: value for name, value in named.items() if name == "timeout"})
            connect(self, "127.0.0.1", port, None, False, wait_for_workers=False, **kept)

        store.__init__ = lead
        rendezvous = sys.modules["torch.distributed.rendezvous"]

        def from_file(url, timeout=None, **named):
            rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
            yield (store("", 0), rank, size)
            raise RuntimeError("the ranks have met already")

        rendezvous._rendezvous_handlers["file"] = from_file

    def tell_of_groups(self, c10d):
        """Reports the members of a group to the store, which then identifies the ranks that will not answer."""
        make = c10d._new_process_group_helper

        def make_and_tell(*arguments, **named):
            self.publish_group(arguments)
            return make(*arguments, **named)

        self.replace(c10d, "_new_process_group_helper", make_and_tell)

    @harmless(None)
    def publish_group(self, arguments):
        """Writes the ranks of a group to the store, by the arguments of torch's private function."""
        _, _, ranks, _, _, name, *_ = arguments
        if ranks:
            self.meeting().set(f"tonnage-groups/{self.secret}/{name}", ",".join(map(str, ranks)))

    def make_groups_alone(self, c10d):
        """A group opens its own communicator, whose size and rank torch states. To split one, NCCL queries all."""
        if hasattr(c10d, "_get_split_source"):
            self.replace(c10d, "_get_split_source", lambda *arguments, **named: None)
        if not hasattr(c10d, "split_group"):
            return

        def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None, **named):
            if not split_ranks:
                raise ValueError("split_ranks cannot be None or empty")
            parent = parent_pg or c10d._get_default_group()
            members = c10d.get_process_group_ranks(parent)
            own = members.index(c10d.get_rank())
            for ranks in split_ranks:
                if own in ranks:
                    backend = named.get("backend") or c10d.get_backend(parent)
                    ranks = [members[rank] for rank in ranks]
                    return c10d.new_group(
                        ranks, timeout, backend, pg_options, use_local_synchronization=True, group_desc=group_desc
                    )
            return c10d.GroupMember.NON_GROUP_MEMBER

        self.replace(c10d, "split_group", split_group)

    def replace_gloo(self, c10d):
        """Gloo connects to every peer. Torch has a group for tests that does not, and takes all ranks for the same."""
        from torch.testing._internal.distributed import fake_pg

        fake = fake_pg.FakeProcessGroup

        def make(rank, size):
            if hasattr(fake, "_create_internal"):
                options = fake.Options() if hasattr(fake, "Options") else None
                if options is not None and hasattr(options, "simulate_uniform_ranks"):
                    options.simulate_uniform_ranks = True
                return fake._create_internal(rank, size, options) if options else fake._create_internal(rank, size)
            return fake(rank, size)

        plugins = c10d.Backend._plugins
        if "GLOO" in plugins:

            def create(common, options):
                return make(common.group_rank, common.group_size)

            plugins["GLOO"] = c10d.Backend._BackendPlugin(create, True)
        elif hasattr(c10d, "ProcessGroupGloo"):

            class Gloo(c10d.ProcessGroupGloo):
                def __new__(cls, store, rank, size, *more, **named):
                    return make(rank, size)

            c10d.ProcessGroupGloo = Gloo

    def share_symmetric_memory(self):
        """Up to torch 2.6 ranks pass its location in a file, whose name the first of them sends; later in the
        store of their group."""
        found = importlib.util.find_spec("torch.distributed._symmetric_memory")
        if found is None or b"FileStore(" not in Path(found.origin).read_bytes():
            return
        symmetric_memory, c10d = importlib.import_module(found.name), self.c10d

        def enable(group_name):
            stores = symmetric_memory._group_name_to_store
            if group_name not in stores:
                group = c10d._resolve_process_group(group_name)
                store = c10d.PrefixStore("symmetric_memory", c10d._get_process_group_store(group))
                stores[group_name] = store
                symmetric_memory._SymmetricMemory.set_group_info(group_name, group.rank(), group.size(), store)

        symmetric_memory.enable_symm_mem_for_group = enable

    def look_at_meshes(self):
        """Reports which ranks do something else than this one: the stages of a pipeline differ."""
        from torch.distributed.device_mesh import DeviceMesh

        make = DeviceMesh.__init__
        ranks = self

        def make_and_look(self, *arguments, **named):
            make(self, *arguments, **named)
            try:
                ranks.look_at(self.mesh, self.mesh_dim_names or ())
            except Exception as error:
                # No part of the hook needs the mesh here.
                swallow("Ranks.look_at_meshes", error)

        DeviceMesh.__init__ = make_and_look

    def look_at(self, mesh, names):
        if mesh.numel() != self.c10d.get_world_size():
            return
        for dimension, name in enumerate(names):
            if name.lower() in PIPELINES:
                stages = mesh.movedim(dimension, 0).flatten(1)[:, 0]
                self.note(differing_ranks=[int(rank) for rank in stages])

    # Objects.

    def ranks_of(self, group):
        c10d = self.c10d
        return c10d.get_process_group_ranks(group if group is not None else c10d._get_default_group())

    def turn(self, *name):
        """The next number for exchanges by this name; all who take part count the same."""
        self.turns[name] = self.turns.get(name, 0) + 1
        # Objects are unpickled, so their keys are secret: where the system has no table of connections, the store
        # cannot refuse another user.
        return "/".join(("tonnage-objects", self.secret, *map(str, name), str(self.turns[name])))

    def meeting(self):
        if self.store is None:
            self.store = self.make_store("", 0)
            # The run's store answers when no rank can answer any more. Until then a rank may be slow: many share this
            # machine, and torch would give up after five minutes.
            self.store.set_timeout(datetime.timedelta(days=7))
        return self.store

    def say(self, key, value):
        data = pickle.dumps(value)
        pieces = range(0, len(data), PIECE)
        for number, start in enumerate(pieces):
            self.meeting().set(f"{key}/{number}", data[start : start + PIECE])
        self.meeting().set(f"{key}/count", str(len(pieces)))

    def hear(self, key, rank):
        count = bytes(self.meeting().get(f"{key}/count"))
        if count == b"none":
            raise RuntimeError(f"rank {rank} has ended, or waits too, and has not sent the objects that are waited for")
        count = int(count)
        return pickle.loads(b"".join(bytes(self.meeting().get(f"{key}/{number}")) for number in range(count)))

    def from_all(self, group, value):
        """The message of each rank of a group; a missing rank sends the message of this one."""
        own = self.c10d.get_rank()
        ranks = self.ranks_of(group)
        key = self.turn("all", self.name_of(group))
        if len(self.running.intersection(ranks)) > 1:
            self.say(f"{key}/{own}", value)
        heard = []
        for rank in ranks:
            if rank != own and rank in self.running:
                heard.append(self.hear(f"{key}/{rank}", rank))
            else:
                heard.append(value if rank == own else pickle.loads(pickle.dumps(value)))
        return heard

    def name_of(self, group):
        group = group if group is not None else self.c10d._get_default_group()
        return getattr(group, "group_name", "") or ",".join(map(str, self.ranks_of(group)))

    def source(self, group, src, group_src):
        if group_src is not None:
            return self.ranks_of(group)[group_src]
        return 0 if src is None else src

    def is_member(self, group):
        return group is not self.c10d.GroupMember.NON_GROUP_MEMBER

    def all_gather_object(self, object_list, obj, group=None):
        if self.is_member(group):
            object_list[: len(self.ranks_of(group))] = self.from_all(group, obj)

    def gather_object(self, obj, object_gather_list=None, dst=None, group=None, group_dst=None):
        if not self.is_member(group):
            return
        heard = self.from_all(group, obj)
        if object_gather_list is not None and self.c10d.get_rank() == self.source(group, dst, group_dst):
            object_gather_list[: len(heard)] = heard

    def broadcast_object_list(self, object_list, src=None, group=None, device=None, group_src=None, **named):
        if not self.is_member(group):
            return
        key = self.turn("from", self.name_of(group))
        source = self.source(group, src, group_src)
        if source == self.c10d.get_rank():
            if len(self.running.intersection(self.ranks_of(group))) > 1:
                self.say(key, list(object_list))
        elif source in self.running:
            object_list[:] = self.hear(key, source)
        elif all(one is None for one in object_list):
            raise self.unknown(source)

    def scatter_object_list(
        self, scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None
    ):
        if not self.is_member(group):
            return
        key = self.turn("from", self.name_of(group))
        source = self.source(group, src, group_src)
        own = self.c10d.get_rank()
        ranks = self.ranks_of(group)
        if source == own:
            scatter_object_output_list[0] = scatter_object_input_list[ranks.index(own)]
            if len(self.running.intersection(ranks)) > 1:
                self.say(key, list(scatter_object_input_list))
        elif source in self.running:
            scatter_object_output_list[0] = self.hear(key, source)[ranks.index(own)]
        else:
            raise self.unknown(source)

    def send_object_list(self, object_list, dst=None, group=None, device=None, group_dst=None, **named):
        if self.is_member(group):
            receiver = self.source(group, dst, group_dst)
            key = self.turn("pair", self.name_of(group), self.c10d.get_rank(), receiver)
            if receiver in self.running:
                self.say(key, list(object_list))

    def recv_object_list(self, object_list, src=None, group=None, device=None, group_src=None, **named):
        if not self.is_member(group):
            return -1
        source = self.source(group, src, group_src)
        if source not in self.running:
            raise self.unknown(source)
        key = self.turn("pair", self.name_of(group), source, self.c10d.get_rank())
        object_list[:] = self.hear(key, source)
        return source

    def unknown(self, rank):
        own = self.c10d.get_rank()
        self.note(differing_ranks=[rank])
        ranks = ",".join(map(str, sorted({*self.running, rank})))
        return RuntimeError(
            f"rank {own} waits for objects from rank {rank}, which tonnage does not run: name it too, --ranks {ranks}"
        )
