# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs experiment trackers and the Hugging Face Hub without uploads.

Most trackers have an offline mode, which `tonnage run` selects by environment variables. A script can select another
mode itself, so each library is also changed after its import. Trackers that only write local files are left alone.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import uuid
from urllib.parse import urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tonnage_hook.offline import Offline

# Methods of `HfApi` that return nothing.
_HUB_SILENT = (
    "create_branch create_tag delete_branch delete_tag delete_repo move_repo super_squash_history preupload_lfs_files "
    "upload_large_folder permanently_delete_lfs_files update_repo_settings update_repo_visibility add_space_secret "
    "delete_space_secret delete_collection delete_collection_item delete_bucket move_bucket update_bucket_settings "
    "batch_bucket_files copy_files unlike merge_pull_request"
).split()
_HUB_COMMITS = "create_commit upload_file upload_folder delete_file delete_files delete_folder".split()
_HUB_REPOSITORIES = "create_repo duplicate_space duplicate_repo".split()

_WANDB_QUIET = ("disabled", "dryrun", "offline")


def _tracker_directory():
    """The directory of trackers whose service calls the kernel directly, where no mount redirects it."""
    if os.environ.get("TONNAGE_FILES_BY") != "preload":
        return None
    return os.path.join(os.environ["TONNAGE_FILES"], "trackers")


def _quiet_mode(mode):
    return mode if mode in _WANDB_QUIET else "offline"


class Trackers:
    def __init__(self, offline: Offline) -> None:
        self.offline = offline

    # ---- Weights & Biases ----

    def change_wandb(self, module):
        begin = module.init
        # Its service is a separate process, which reads the variable.
        if os.environ.get("WANDB_MODE") not in _WANDB_QUIET:
            os.environ["WANDB_MODE"] = "offline"
        directory = _tracker_directory()
        if directory is not None:
            os.makedirs(directory, exist_ok=True)
            os.environ["WANDB_DIR"] = os.environ["WANDB_DATA_DIR"] = directory

        @functools.wraps(begin)
        def init(*arguments, **options):
            if directory is not None and options.get("dir") is not None:
                options["dir"] = directory
            # Before release 0.18, settings have no mode that could be changed.
            if os.environ.get("WANDB_MODE") not in _WANDB_QUIET:
                os.environ["WANDB_MODE"] = "offline"
            if options.get("mode") is not None:
                options["mode"] = _quiet_mode(options["mode"])
            run = begin(*arguments, **options)
            if not getattr(run, "disabled", False):
                self.offline.suppress("wandb", "run kept offline")
            return run

        module.init = init

    def change_wandb_settings(self, module):
        settings = module.Settings
        begin, set_attribute = settings.__init__, settings.__setattr__
        directory = _tracker_directory()

        @functools.wraps(begin)
        def init(self, *arguments, **options):
            begin(self, *arguments, **options)
            # Not by `setattr`: a default is not a choice, and must not replace one.
            self.__dict__["mode"] = _quiet_mode(self.__dict__["mode"])
            if directory is not None and self.__dict__.get("root_dir") is not None:
                self.__dict__["root_dir"] = directory

        @functools.wraps(set_attribute)
        def set_quietly(self, name, value):
            if name == "mode":
                value = _quiet_mode(value)
            elif name == "root_dir" and directory is not None:
                value = directory
            set_attribute(self, name, value)

        settings.__init__ = init
        settings.__setattr__ = set_quietly

    def change_wandb_login(self, module):
        login = module.login

        @functools.wraps(login)
        def login_or_pass(*arguments, **options):
            return login(*arguments, **options) or os.environ.get("WANDB_MODE") != "disabled"

        module.login = login_or_pass

    def change_wandb_run(self, module):
        run = module.Run
        use_artifact = run.use_artifact

        def url(self):
            settings = self._settings
            root = getattr(settings, "app_url", None) or "https://wandb.ai"
            project = f"{root}/{settings.entity or 'entity'}/{settings.project or 'uncategorized'}"
            return f"{project}/runs/{self.id}"

        @functools.wraps(use_artifact)
        def use_artifact_online(self, artifact_or_name, type=None, *arguments, **options):
            # An artifact of the server is a read, which the offline mode refuses.
            if not isinstance(artifact_or_name, str):
                return artifact_or_name
            import wandb

            return wandb.Api().artifact(artifact_or_name, type=type)

        def link(self, *arguments, **options):
            return None

        run.url = property(url)
        run.project_url = property(lambda self: url(self).partition("/runs/")[0])
        run.get_url = url
        run.use_artifact = use_artifact_online
        run.link_artifact = functools.wraps(run.link_artifact)(link)

    def change_wandb_artifact(self, module):
        artifact = module.Artifact
        wait = artifact.wait

        @functools.wraps(wait)
        def wait_unless_local(self, *arguments, **options):
            return self if self.is_draft() else wait(self, *arguments, **options)

        artifact.wait = wait_unless_local

    # ---- MLflow ----

    def _local_store(self, uri):
        """The address to use instead of a tracking server: a directory of this dry run."""
        text = str(uri or "")
        scheme = urlsplit(text).scheme
        local = ("", "file", "sqlite")
        if scheme in local and not text.startswith("databricks"):
            return uri
        self.offline.suppress("mlflow", f"tracking kept local, not at {urlsplit(text).hostname or text}")
        folder = os.path.join(os.environ["TONNAGE_RUN"], "mlflow")
        return f"file://{folder}"

    def change_mlflow(self, module):
        resolve, get = module._resolve_tracking_uri, module.get_tracking_uri
        # A file store is the documented one that needs no database.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        noted = {}

        def localise(uri):
            if uri not in noted:
                noted[uri] = self._local_store(uri)
            return noted[uri]

        @functools.wraps(resolve)
        def resolve_locally(tracking_uri=None):
            return localise(resolve(tracking_uri))

        @functools.wraps(get)
        def get_locally():
            return localise(get())

        module._resolve_tracking_uri = resolve_locally
        module.get_tracking_uri = get_locally

    def change_mlflow_registry(self, module):
        for name in ("_resolve_registry_uri", "get_registry_uri"):
            resolve = getattr(module, name, None)
            if resolve is not None:
                setattr(module, name, self._localised(resolve))

    def _localised(self, resolve):
        @functools.wraps(resolve)
        def resolve_locally(*arguments, **options):
            return self._local_store(resolve(*arguments, **options))

        return resolve_locally

    # ---- Comet ----

    def change_comet(self, module):
        start = module.start
        folder = os.path.join(os.environ["TONNAGE_RUN"], "comet")
        os.environ["COMET_OFFLINE_DIRECTORY"] = folder
        suppress = self.offline.suppress

        @functools.wraps(start)
        def start_offline(*arguments, **options):
            suppress("comet_ml", "experiment kept offline")
            options["online"] = False
            return start(*arguments, **options)

        def offline(kind):
            class Offline(kind):
                def __init__(self, api_key=None, *arguments, **options):
                    if not options.get("disabled"):
                        suppress("comet_ml", "experiment kept offline")
                    # An online experiment has its key first; an offline one does not take it.
                    names = ("workspace", "project_name")
                    options.update(zip(names, arguments, strict=False))
                    known = inspect.signature(kind.__init__).parameters
                    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
                        options = {name: value for name, value in options.items() if name in known}
                    super().__init__(**options)

                @property
                def url(self):
                    place = f"{self.workspace or 'workspace'}/{self.project_name or 'general'}"
                    return f"https://www.comet.com/{place}/{self.get_key()}"

                def get_url(self, *arguments, **options):
                    return self.url

            Offline.__name__, Offline.__qualname__ = kind.__name__, kind.__qualname__
            return Offline

        module.start = start_offline
        module.Experiment = offline(module.OfflineExperiment)
        if hasattr(module, "ExistingExperiment"):
            module.ExistingExperiment = offline(module.ExistingOfflineExperiment)

    # ---- Neptune ----

    def change_neptune(self, module):
        container = module.MetadataContainer
        begin, mode_type = container.__init__, module.Mode

        @functools.wraps(begin)
        def init(self_, *arguments, mode=mode_type.DEBUG, **options):
            if mode not in (mode_type.DEBUG, mode_type.OFFLINE, mode_type.READ_ONLY):
                mode = mode_type.DEBUG
            self.offline.suppress("neptune", "run not sent")
            return begin(self_, *arguments, mode=mode, **options)

        container.__init__ = init

    # ---- others ----

    def change_trackio(self, module):
        begin = module.init

        @functools.wraps(begin)
        def init(*arguments, **options):
            if options.pop("space_id", None) or os.environ.pop("TRACKIO_SPACE_ID", None):
                self.offline.suppress("trackio", "run kept local")
            options.pop("dataset_id", None)
            return begin(*arguments, **options)

        module.init = init

    def change_swanlab(self, module):
        begin = module.init

        @functools.wraps(begin)
        def init(*arguments, **options):
            if options.get("mode") not in ("disabled", "local", "offline"):
                options["mode"] = "offline"
            self.offline.suppress("swanlab", "run kept offline")
            return begin(*arguments, **options)

        module.init = init
        module.login = lambda *arguments, **options: None

    def change_clearml(self, module):
        module.Task.set_offline(offline_mode=True)
        begin = module.Task.init

        @functools.wraps(begin)
        def init(*arguments, **options):
            self.offline.suppress("clearml", "task kept offline")
            return begin(*arguments, **options)

        module.Task.init = init

    # ---- Hugging Face Hub ----

    def change_hub(self, module):
        """Downloads work as ever. Methods that change a repository return what they would return."""
        results = {name: self._hub_nothing for name in _HUB_SILENT}
        results.update((name, self._hub_commit) for name in _HUB_COMMITS)
        results.update((name, self._hub_repository) for name in _HUB_REPOSITORIES)
        api = module.HfApi
        changed = [name for name in results if hasattr(api, name)]
        for name in changed:
            setattr(api, name, self._hub_method(module, name, getattr(api, name), results[name]))
        # The functions of the module are methods that were bound while it was imported.
        for name in changed:
            if callable(module.__dict__.get(name)):
                setattr(module, name, getattr(module.api, name))

    def _hub_method(self, module, name, real, result):
        signature = inspect.signature(real)

        @functools.wraps(real)
        def method(hub, *arguments, **options):
            from tonnage_hook.network import is_here

            if is_here(urlsplit(hub.endpoint).hostname or ""):
                return real(hub, *arguments, **options)
            bound = signature.bind(hub, *arguments, **options)
            bound.apply_defaults()
            given = bound.arguments
            if given.pop("run_as_future", False):
                return hub.run_as_future(method, hub, **{key: given[key] for key in given if key != "self"})
            place = next((given[key] for key in ("repo_id", "to_id", "from_id", "bucket_id") if given.get(key)), "")
            self.offline.suppress("huggingface_hub", f"{name} {place}".strip())
            return result(module, hub, given)

        return method

    def _hub_nothing(self, module, hub, given):
        return None

    def _hub_repository(self, module, hub, given):
        name = given.get("repo_id") or given.get("to_id") or given["from_id"].rpartition("/")[2]
        kind = given.get("repo_type") or "model"
        if "/" not in name:
            try:
                owner = hub.whoami(token=given.get("token"))["name"]
            except Exception:
                owner = "user"
            name = f"{owner}/{name}"
        return module.RepoUrl(f"{hub.endpoint}/{'' if kind == 'model' else kind + 's/'}{name}", endpoint=hub.endpoint)

    def _hub_commit(self, module, hub, given):
        if given.get("path_or_fileobj") is not None:
            # Raises what an upload raises for a file that does not exist.
            from huggingface_hub import CommitOperationAdd

            CommitOperationAdd(path_in_repo=given["path_in_repo"], path_or_fileobj=given["path_or_fileobj"])
        # A generator of operations writes files as it goes.
        list(given.get("operations") or ())
        folder = given.get("folder_path")
        if folder is not None and not os.path.isdir(folder):
            raise ValueError(f"Provided path: '{folder}' is not a directory")
        kind = given.get("repo_type") or "model"
        repository = f"{hub.endpoint}/{'' if kind == 'model' else kind + 's/'}{given['repo_id']}"
        commit = hashlib.sha1(uuid.uuid4().bytes, usedforsecurity=False).hexdigest()
        return module.CommitInfo(
            commit_url=f"{repository}/commit/{commit}",
            commit_message=given.get("commit_message") or "Upload with huggingface_hub",
            commit_description=given.get("commit_description") or "",
            oid=commit,
            pr_url=f"{repository}/discussions/1" if given.get("create_pr") else None,
        )

    def change_hub_repository(self, module):
        """Before release 1.0, a repository could be a clone that is pushed by git."""
        repository = module.Repository

        def git_push(self_, *arguments, **options):
            self.offline.suppress("huggingface_hub", "git push")
            return f"{self_.git_remote_url()}/commit/{self_.git_head_hash()}"

        repository.git_push = functools.wraps(repository.git_push)(git_push)
