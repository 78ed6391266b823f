# SPDX-License-Identifier: MIT OR Apache-2.0
def _answer():
    import os
    import sys

    def is_ours(name):
        return name == "tonnage_hook" or name.startswith("tonnage_hook.")

    # A job of `tonnage run` has modules of these names already.
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if is_ours(name)}
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    finders = list(sys.meta_path)
    try:
        scope = {"__name__": "tonnage_hook.loader"}
        with open(os.path.join(FOLDER, "tonnage_hook", "loader.py"), encoding="utf-8") as file:  # noqa: F821
            exec(compile(file.read(), "<tonnage>", "exec"), scope)
        scope["install"](FOLDER)  # noqa: F821
        from tonnage_hook.torch.attached import write

        write(REPLY, COUNTS_ONLY)  # noqa: F821
    except Exception as error:
        import json

        with open(REPLY + ".part", "w") as file:  # noqa: F821
            json.dump({"problem": type(error).__name__ + ": " + str(error)}, file)
        os.rename(REPLY + ".part", REPLY)  # noqa: F821
    finally:
        sys.meta_path[:] = finders
        for name in list(sys.modules):
            if is_ours(name):
                del sys.modules[name]
        sys.modules.update(kept)
        sys.dont_write_bytecode = bytecode


_answer()
