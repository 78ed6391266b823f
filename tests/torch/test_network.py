# SPDX-License-Identifier: MIT OR Apache-2.0
"""A dry run uploads nothing: real client libraries against a server that counts what arrives.

The server listens on another address of the loopback device, which `TONNAGE_REMOTE_HOSTS` makes a remote host. Each
script has the output that it has where its uploads succeed. Scripts for packages that the environment lacks are
skipped; `NETWORK_PACKAGES` names a folder with more of them (`pip install --target`).
"""

import http.server
import importlib.util
import os
import sys
import threading

import pytest
from conftest import PYTHON

HOST = "127.0.0.2"
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
MORE = os.environ.get("NETWORK_PACKAGES", "")
sys.path += [MORE] if MORE else []


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path))
        body = b'{"hello": "world"}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer((HOST, 0), Handler) as server:
        server.seen = []
        server.url = f"http://{HOST}:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def run(tonnage, server, tmp_path):
    """Runs a script; its output, what changing requests the server saw, and the side effects of the verdict."""

    def run(source, options=(), **variables):
        script = tmp_path / "script.py"
        script.write_text(source)
        output = tmp_path / "output"
        settings = {
            "TONNAGE_REMOTE_HOSTS": HOST,
            "SERVER": server.url,
            "OUTPUT": str(output),
            "HOME": str(tmp_path),
            **({"PYTHONPATH": MORE} if MORE else {}),
            **variables,
        }
        done = tonnage(None, command=[PYTHON, str(script)], options=options, **settings)
        assert done.verdict["ending"] == "exit 0", done.err
        changed = [request for request in server.seen if request[0] in CHANGING]
        return done, changed, done.verdict["side_effects"]

    return run


#: Scripts, the package that they need, the output, and libraries that the verdict lists.
SCRIPTS = {
    "http.client": (
        None,
        """
import http.client, os
c = http.client.HTTPConnection(os.environ["SERVER"][7:])
for method in ("POST", "PUT", "PATCH", "DELETE"):
    c.request(method, "/secret", b'{"text": "done"}', {"Content-Type": "application/json"})
    r = c.getresponse()
    print(method, r.status, r.read())
c.request("GET", "/")
print(c.getresponse().read())
""",
        "POST 200 b'{}'\nPUT 200 b'{}'\nPATCH 200 b'{}'\nDELETE 200 b'{}'\nb'{\"hello\": \"world\"}'\n",
        {"HTTP"},
    ),
    "urllib": (
        None,
        """
import json, os, urllib.request
request = urllib.request.Request(os.environ["SERVER"] + "/hook", data=b"{}")
print(json.load(urllib.request.urlopen(request)))
print(json.load(urllib.request.urlopen(os.environ["SERVER"])))
""",
        "{}\n{'hello': 'world'}\n",
        {"HTTP"},
    ),
    "httpx": (
        "httpx2",
        """
import asyncio, os, httpx2
url = os.environ["SERVER"]
print(httpx2.post(url + "/hook", json={"a": 1}).json(), httpx2.get(url).json())
async def main():
    async with httpx2.AsyncClient() as client:
        print((await client.put(url + "/file", content=b"1" * 3_000_000)).status_code)
asyncio.run(main())
""",
        "{} {'hello': 'world'}\n200\n",
        {"HTTP"},
    ),
    "aiohttp": (
        "aiohttp",
        """
import asyncio, os, aiohttp
url = os.environ["SERVER"]
async def main():
    async with aiohttp.ClientSession() as session:
        async with session.post(url + "/hook", json={"a": 1}, raise_for_status=True) as response:
            print(response.status, await response.json(), str(response.url) == url + "/hook")
        async with session.get(url) as response:
            print(await response.json())
asyncio.run(main())
""",
        "200 {} True\n{'hello': 'world'}\n",
        {"HTTP"},
    ),
    "mail": (
        None,
        """
import smtplib
from email.message import EmailMessage
message = EmailMessage()
message["From"], message["To"] = "a@example.com", "b@example.com"
message.set_content("done")
with smtplib.SMTP("mail.example.com", 587) as mail:
    mail.starttls()
    mail.login("user", "secret")
    print(mail.send_message(message))
""",
        "{}\n",
        {"SMTP"},
    ),
    "a forked process": (
        None,
        """
import multiprocessing, os, urllib.request
def send(number):
    request = urllib.request.Request(os.environ["SERVER"] + "/hook", data=b"{}")
    return urllib.request.urlopen(request).status
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(send, range(4)))
""",
        "[200, 200, 200, 200]\n",
        {"HTTP"},
    ),
    "huggingface_hub": (
        "huggingface_hub",
        """
import os
import huggingface_hub as hub
api = hub.HfApi()
print(api.create_repo("me/model", exist_ok=True).repo_id)
os.makedirs("folder")
open("folder/weights.bin", "wb").write(b"0" * 100)
info = hub.upload_file(path_or_fileobj="folder/weights.bin", path_in_repo="weights.bin", repo_id="me/model")
print(len(info.oid), info.repo_url.repo_id)
print(type(hub.upload_folder(folder_path="folder", repo_id="me/model", run_as_future=True).result()).__name__)
added = hub.CommitOperationAdd("a", b"1")
print(api.create_commit("me/model", operations=[added], commit_message="m", create_pr=True).pr_num)
print(api.create_tag("me/model", tag="v1"), api.delete_repo("me/model"))
try:
    hub.upload_file(path_or_fileobj="missing.bin", path_in_repo="weights.bin", repo_id="me/model")
except ValueError as error:
    print("missing.bin" in str(error))
print(type(hub.ModelCard("---\\nlicense: mit\\n---\\nhello").push_to_hub("me/model")).__name__)
""",
        "me/model\n40 me/model\nCommitInfo\n1\nNone None\nTrue\nCommitInfo\n",
        {"huggingface_hub"},
    ),
    "push_to_hub": (
        "transformers",
        """
from transformers import BertConfig, BertModel
small = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=8)
model = BertModel(BertConfig(**small))
print(model.push_to_hub("me/model").repo_url.repo_id)
""",
        "me/model\n",
        {"huggingface_hub"},
    ),
    "requests": (
        "requests",
        """
import os, requests
url = os.environ["SERVER"]
print(requests.post(url + "/hook", json={"text": "done"}).json(), requests.get(url).json())
print(requests.put(url + "/file", data=(b"1" for _ in range(3))).ok)
""",
        "{} {'hello': 'world'}\nTrue\n",
        {"HTTP"},
    ),
    "boto3": (
        "boto3",
        """
import os, boto3
from boto3.s3.transfer import TransferConfig
keys = dict(aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1")
s3 = boto3.client("s3", endpoint_url=os.environ["SERVER"], **keys)
open("weights.bin", "wb").write(b"0" * 20_000_000)
sent = []
small = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=6 << 20)
s3.upload_file("weights.bin", "bucket", "weights.bin", Config=small, Callback=sent.append)
print(sum(sent), s3.put_object(Bucket="bucket", Key="a", Body=b"1")["ResponseMetadata"]["HTTPStatusCode"])
print(s3.copy_object(Bucket="bucket", Key="b", CopySource="bucket/a")["CopyObjectResult"]["ETag"] != "")
s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "a"}]})
print(s3.delete_object(Bucket="bucket", Key="b")["ResponseMetadata"]["HTTPStatusCode"])
""",
        "20000000 200\nTrue\n204\n",
        {"S3"},
    ),
    "google-cloud-storage": (
        "google.cloud.storage",
        """
import os
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
place = {"api_endpoint": os.environ["SERVER"]}
client = storage.Client(project="p", credentials=AnonymousCredentials(), client_options=place)
bucket = client.bucket("bucket")
blob = bucket.blob("a.txt")
blob.upload_from_string("hello")
print(blob.size, blob.name)
open("weights.bin", "wb").write(b"0" * 20_000_000)
large = bucket.blob("weights.bin", chunk_size=8 << 20)
large.upload_from_filename("weights.bin")
print(large.size)
bucket.delete_blob("a.txt")
""",
        "5 a.txt\n20000000\n",
        {"Google Cloud Storage"},
    ),
    "azure-storage-blob": (
        "azure.storage.blob",
        """
import os
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import BlobServiceClient
service = BlobServiceClient(os.environ["SERVER"] + "/account", credential=AzureNamedKeyCredential("account", "a2V5"))
container = service.create_container("container")
print(container.container_name)
open("weights.bin", "wb").write(b"0" * 20_000_000)
with open("weights.bin", "rb") as file:
    print(container.upload_blob("weights.bin", file, overwrite=True, max_concurrency=2).blob_name)
container.delete_blob("weights.bin")
""",
        "container\nweights.bin\n",
        {"Azure Storage"},
    ),
    "s3fs": (
        "s3fs",
        """
import os, s3fs
place = {"endpoint_url": os.environ["SERVER"], "region_name": "us-east-1"}
fs = s3fs.S3FileSystem(key="a", secret="b", client_kwargs=place)
with fs.open("bucket/weights.bin", "wb") as file:
    file.write(b"0" * 7_000_000)
print("done")
""",
        "done\n",
        {"S3"},
    ),
    "wandb": (
        "wandb",
        """
import os
os.environ["WANDB_MODE"] = "online"
import wandb
print(wandb.login())
run = wandb.init(project="project", config={"lr": 0.1}, mode="online")
print(len(run.id), run.url.endswith(run.id), wandb.config.lr, run.project)
run.log({"loss": 1.0})
open("weights.txt", "w").write("x")
artifact = wandb.Artifact("model", "model")
artifact.add_file("weights.txt")
run.log_artifact(artifact).wait()
run.finish()
with wandb.init(project="project", settings=wandb.Settings(mode="online")) as run:
    run.log({"loss": 2.0})
print("done")
""",
        "True\n8 True 0.1 project\ndone\n",
        {"wandb"},
    ),
    "mlflow": (
        "mlflow",
        """
import os, mlflow
mlflow.set_tracking_uri(os.environ["SERVER"])
print(mlflow.set_experiment("experiment").name)
with mlflow.start_run() as run:
    mlflow.log_param("lr", 0.1)
    mlflow.log_metric("loss", 1.0, step=1)
    open("weights.txt", "w").write("x")
    mlflow.log_artifact("weights.txt")
client = mlflow.MlflowClient(tracking_uri=os.environ["SERVER"])
print(client.get_run(run.info.run_id).data.metrics, [file.path for file in client.list_artifacts(run.info.run_id)])
""",
        "experiment\n{'loss': 1.0} ['weights.txt']\n",
        {"mlflow"},
    ),
    "comet_ml": (
        "comet_ml",
        """
import comet_ml
experiment = comet_ml.Experiment(api_key="x" * 20, project_name="project", workspace="me")
experiment.log_metric("loss", 1.0, step=1)
print(len(experiment.get_key()), experiment.url.split("/")[3:5])
experiment.end()
""",
        "32 ['me', 'project']\n",
        {"comet_ml"},
    ),
}
#: Trackers that the tests' Python lacks, as far as the hook knows them: each prints its mode.
TRACKERS = {
    "neptune/metadata_containers/metadata_container.py": """
import enum
class Mode(enum.Enum):
    ASYNC, DEBUG, OFFLINE, READ_ONLY = "async", "debug", "offline", "read-only"
class MetadataContainer:
    def __init__(self, *, project=None, mode=Mode.ASYNC):
        print("neptune", project, mode.value)
""",
    "swanlab/__init__.py": """
def init(project=None, mode="cloud"):
    print("swanlab", project, mode)
def login(api_key=None):
    print("swanlab sends the key")
""",
    "clearml/__init__.py": """
class Task:
    offline = False
    @classmethod
    def set_offline(cls, offline_mode=False):
        cls.offline = offline_mode
    @classmethod
    def init(cls, project_name=None, task_name=None):
        print("clearml", project_name, "offline" if cls.offline else "online")
""",
    "trackio/__init__.py": """
def init(project=None, space_id=None, dataset_id=None):
    print("trackio", project, space_id, dataset_id)
""",
}
TRACKED = """
import os
from neptune.metadata_containers.metadata_container import MetadataContainer, Mode
MetadataContainer(project="a")
MetadataContainer(project="b", mode=Mode.ASYNC)
MetadataContainer(project="c", mode=Mode.READ_ONLY)
import swanlab
swanlab.login("key")
swanlab.init("a")
swanlab.init("b", mode="cloud")
swanlab.init("c", mode="local")
from clearml import Task
Task.init("a", task_name="b")
import trackio
trackio.init("a", space_id="me/space", dataset_id="me/data")
print(os.environ["NEPTUNE_MODE"], os.environ["SWANLAB_MODE"], os.environ["CLEARML_OFFLINE_MODE"])
"""
OFFLINE = """neptune a debug
neptune b debug
neptune c read-only
swanlab a offline
swanlab b offline
swanlab c local
clearml a offline
trackio a None None
debug offline 1
"""
HUB = {"HF_ENDPOINT": "{server}", "HF_TOKEN": "hf_x"}
VARIABLES = {
    "huggingface_hub": HUB,
    "push_to_hub": HUB,
    "wandb": {"WANDB_API_KEY": "a" * 40, "WANDB_BASE_URL": "{server}"},
}
PREFIX = "import os, sys\nsys.stdout = open(os.environ['OUTPUT'], 'w', buffering=1)\n"


def is_missing(package):
    try:
        return package is not None and importlib.util.find_spec(package) is None
    except ModuleNotFoundError:
        return True


# The service of wandb calls the kernel directly, so the library cannot redirect its files.
@pytest.mark.parametrize(("name", "by"), [*((name, "") for name in SCRIPTS), ("wandb", "preload")])
def test_a_script_uploads_nothing_and_goes_on(name, by, run, server, tmp_path):
    package, source, expected, libraries = SCRIPTS[name]
    if is_missing(package):
        pytest.skip(f"{package} is not installed")
    variables = {key: value.format(server=server.url) for key, value in VARIABLES.get(name, {}).items()}
    done, changed, effects = run(PREFIX + source, **variables, **({"TONNAGE_FILES_BY": by} if by else {}))
    # A card is checked by a request that keeps nothing.
    assert [path for _, path in changed if path != "/api/validate-yaml"] == []
    assert (tmp_path / "output").read_text() == expected, done.err
    assert libraries <= {action["library"] for action in effects["suppressed"]}
    assert effects["unprotected"] == []
    if name == "a forked process":
        assert [action["count"] for action in effects["suppressed"]] == [4]
    # The path of a webhook is a secret.
    assert "secret" not in str(effects)


def test_trackers_run_offline_whatever_the_script_asks_for(run, tmp_path):
    for name, source in TRACKERS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    _, _, effects = run(PREFIX + TRACKED)
    assert (tmp_path / "output").read_text() == OFFLINE
    assert {action["library"] for action in effects["suppressed"]} == {"neptune", "swanlab", "clearml", "trackio"}
    assert effects["unprotected"] == []


POST = """
import os, urllib.request
for path in ("/hook", "/oauth/token"):
    urllib.request.urlopen(urllib.request.Request(os.environ["SERVER"] + path, data=b"{}")).read()
"""


def test_reads_pass_and_hosts_are_listed(run, server):
    _, changed, effects = run(POST)
    assert changed == [("POST", "/oauth/token")]
    assert effects["hosts"] == [f"{HOST}:{server.server_port}"]


def test_this_machine_is_not_another_one(run, server):
    _, changed, effects = run(POST, TONNAGE_REMOTE_HOSTS="")
    assert len(changed) == 2
    assert effects == {"suppressed": [], "hosts": [], "unprotected": []}


def test_side_effects_are_sent_if_they_are_asked_for(run):
    _, changed, effects = run(POST, options=["--side-effects"])
    assert [path for _, path in changed] == ["/hook", "/oauth/token"]
    assert effects["suppressed"] == []


def test_a_library_that_cannot_be_changed_is_named(run, tmp_path):
    (tmp_path / "swanlab.py").write_text("")
    _, _, effects = run("import swanlab")
    assert [library.split(":")[0] for library in effects["unprotected"]] == ["swanlab"]
