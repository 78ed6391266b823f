# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs see their own changes of files, and no file that existed is changed."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import time

import pytest
from conftest import HERE, snapshot, standin


def test_every_function_of_c(place, program):
    place.compare(program("operations", "-Wno-misleading-indentation"))


@pytest.mark.parametrize("seed", range(12))
def test_random_operations(place, seed):
    place.compare(sys.executable, HERE / "random_operations.py", place.root, seed, 300)


def test_tools(place):
    place.compare("sh", HERE / "tools.sh")


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_git(place):
    place.compare("sh", HERE / "versions.sh")
    place.run("sh", HERE / "versions.sh", protected=False)
    place.save()
    place.compare("sh", HERE / "versions.sh")


def test_python(place):
    place.compare(sys.executable, HERE / "python_program.py")


@pytest.mark.skipif(not importlib.util.find_spec("numpy"), reason="needs numpy")
def test_arrays(place):
    place.compare(sys.executable, HERE / "arrays.py", timeout=300)


def test_nothing_is_redirected_without_the_variable(place):
    done = place.run(
        "sh", "-c", "echo x > best.pt; cat best.pt", protected=False, environment={"LD_PRELOAD": str(standin())}
    )
    assert done.stdout == "x\n"
    assert (place.root / "best.pt").read_text() == "x\n"


def test_changes_are_below_upper(place):
    place.run("sh", "-c", "echo x > best.pt; echo y > data/new; rm log.txt")
    upper = place.changes / "upper" / str(place.root)[1:]
    assert (upper / "best.pt").read_text() == "x\n"
    assert (upper / "data" / "new").read_text() == "y\n"
    assert not (upper / "log.txt").exists()
    assert (place.changes / "deleted" / str(place.root)[1:] / "log.txt").exists()
    assert snapshot(place.root) == place.before


def has_landlock():
    create_ruleset, version = 444, 1
    return ctypes.CDLL(None).syscall(create_ruleset, None, 0, version) >= 3


@pytest.mark.skipif(not has_landlock(), reason="needs Landlock with its right to truncate (Linux 6.2)")
@pytest.mark.parametrize("flags", [[], ["-static"]])
@pytest.mark.parametrize("start", ["", "env -i "])
def test_the_kernel_refuses_writes_that_bypass_the_library(place, program, flags, start):
    """Writes below the directory of changes, such as temporary files of the job, are done."""
    bypass = program("bypass", *flags)
    changing = ("open", "create", "truncate", "rename", "unlink", "link", "mkdir")
    refused = "".join(f"{call} Permission denied\n" for call in changing) + "read done\n"
    assert place.run("sh", "-c", f"{start}{bypass}").stdout == refused
    assert snapshot(place.root) == place.before
    own = place.changes / "own"
    own.mkdir()
    for name in ("best.pt", "log.txt", "secret", "run.sh"):
        (own / name).write_text(name)
    assert place.run("sh", "-c", f"{start}{bypass} {own}").stdout == refused.replace("Permission denied", "done")
    assert sorted(os.listdir(own)) == ["best.pt", "created", "linked", "log.txt", "made", "moved"]


def test_the_file_behind_the_output_can_be_opened_again(place):
    """A shell opens it anew for `/dev/stdout`; the user's own redirection is not a change of the job."""
    with open(place.root.parent / "output", "w") as output:
        line = ["sh", "-c", "echo one; echo two >/dev/stdout; sh -c 'echo three >>/dev/fd/1'"]
        environment = {**os.environ, **place.environment()}
        subprocess.run(line, cwd=place.root, env=environment, stdout=output, check=True)
    assert "three" in (place.root.parent / "output").read_text()


def test_prefixes_pass_through(place, tmp_path):
    (tmp_path / "through").mkdir()
    (place.root / "out").symlink_to(tmp_path / "through")
    (tmp_path / "through" / "back").symlink_to(place.root)
    place.save()
    environment = place.environment(through=[tmp_path / "through"])
    line = "echo a > out/a; mv best.pt out/; echo c > ../through/c; echo d > out/back/log.txt; mv out/c ."
    line += "; ln out/a l; cat c l"
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=place.root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "c\na\n"
    assert sorted(os.listdir(tmp_path / "through")) == ["a", "back", "best.pt"]
    assert (tmp_path / "through" / "best.pt").read_bytes() == b"best" * 5000
    assert snapshot(place.root) == place.before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_permissions_are_those_of_the_user(place, program, tmp_path):
    for folder in [tmp_path, *tmp_path.parents][:3]:
        folder.chmod(0o755)
    line = "id -u; cat secret; echo x > secret; echo x > best.pt; echo x > new; mkdir d"
    line += "; rm log.txt; mv data e; ls; chmod 600 log.txt"
    place.environment()
    place.changes.chmod(0o777)
    library = tmp_path / "library.so"
    shutil.copy(standin(), library)
    plain = place.run("sh", "-c", line, protected=False, user=12345, group=12345)
    extra = {**place.environment(), "LD_PRELOAD": str(library)}
    guarded = place.run("sh", "-c", line, protected=False, environment=extra, user=12345, group=12345)
    assert (guarded.stdout, guarded.stderr) == (plain.stdout, plain.stderr)
    os.chown(place.root, 12345, 12345)
    place.save()
    guarded = place.run("sh", "-c", line, protected=False, environment=extra, user=12345, group=12345)
    assert snapshot(place.root) == place.before
    plain = place.run("sh", "-c", line, protected=False, user=12345, group=12345)
    assert (guarded.stdout, guarded.stderr) == (plain.stdout, plain.stderr)


def test_processes_share_one_view(place):
    """Sixteen processes append to, replace and delete the same files."""
    body = (
        'for i in 1 2 3 4 5 6 7 8; do echo "$0 $i" >> log.txt; echo $0 > tmp.$0; mv tmp.$0 best.pt; '
        "mkdir -p deep/er/$0; rm -rf deep/er/$0; done"
    )
    line = f"for n in $(seq 16); do sh -c '{body}' $n & done; wait; wc -l < log.txt; ls deep/er"
    done = place.compare("sh", "-c", line + "; wc -l < best.pt; echo 1 > best.pt; sort log.txt > log2; mv log2 log.txt")
    assert done.stdout.split() == [str(2 + 16 * 8), "still", "1"]


def test_a_file_is_created_by_one_process_only(place):
    line = "for n in 1 2 3 4 5 6 7 8; do (set -C; echo $n > lock && echo won) 2>/dev/null & done; wait"
    done = place.compare("sh", "-c", line + "; echo 1 > lock")
    assert done.stdout == "won\n"


def test_a_large_sparse_file_is_copied_sparsely(place):
    with open(place.root / "huge", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"x")
    place.pristine = place.pristine.with_name("unused")
    started = time.monotonic()
    done = place.run("sh", "-c", "printf y | dd of=huge conv=notrunc status=none; stat -c %s huge; head -c 1 huge")
    assert done.stdout == f"{1 << 40}\ny"
    assert time.monotonic() - started < 20
    with open(place.root / "huge", "rb") as file:
        assert file.read(1) == b"\0"


def can_mount():
    line = ["unshare", "-Um", "--map-root-user", "true"]
    return shutil.which("unshare") and subprocess.run(line, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs user namespaces")
def test_a_directory_of_an_overlay_is_renamed(place, tmp_path):
    for name in ("upper", "work"):
        (tmp_path / name).mkdir()
    options = f"userxattr,lowerdir={place.root},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    plain = "import os; os.rename('checkpoints', 'moved')"
    full = (
        "import os; os.mkdir('target'); os.rename('checkpoints', 'target');"
        "print(sorted(os.listdir('.')), sorted(os.listdir('target')), open('target/old/step-0.pt').read());"
        "print(os.stat('target/step-1.pt').st_mtime_ns == MTIME)\n"
        "try: os.rename('deep', 'data')\n"
        "except OSError as error: print(error.errno == 39)"
    ).replace("MTIME", str(os.stat(place.root / "checkpoints" / "step-1.pt").st_mtime_ns))
    mount = f"mount -t overlay overlay -o {options} {place.root} && cd {place.root} && exec {sys.executable} -c "
    shell = ["unshare", "-Um", "--map-root-user", "sh", "-c"]
    without = subprocess.run([*shell, mount + '"$0"', plain], capture_output=True, text=True, check=False)
    if "Invalid cross-device link" not in without.stderr:
        pytest.skip(f"this kernel does not refuse: {without.stderr}")
    environment = {**os.environ, **place.environment(by="overlay")}
    done = subprocess.run([*shell, mount + '"$0"', full], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.splitlines()[1:] == ["True", "True"], done.stderr
    assert "'target'" in done.stdout and "zero" in done.stdout
    assert snapshot(place.root) == place.before


@pytest.mark.skipif(not can_mount(), reason="needs user namespaces")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for overlay mounts")
def test_a_file_that_is_a_mount_of_its_own_is_protected(place, tmp_path):
    """As a file of the host is in a container."""
    (tmp_path / "host").write_text("precious")
    os.utime(tmp_path / "host", (1_600_000_000, 1_600_000_000))
    before = os.stat(tmp_path / "host")
    command = f"cd {place.root} && echo ruined > secret && cat secret && echo x > new"
    tonnage = f"{os.environ['TONNAGE']} run --gpu t4 -o {tmp_path}/x.tonnage --json -- sh -c '{command}'"
    script = f"mount --bind {tmp_path}/host {place.root}/secret && exec {tonnage}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TONNAGE_FILES_BY": "overlay"},
    )
    assert "ruined" in done.stdout + done.stderr, done.stderr
    after = os.stat(tmp_path / "host")
    assert (tmp_path / "host").read_text() == "precious"
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
