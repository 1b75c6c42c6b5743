"""The Hugging Face hub, for those who have its package: models fetched and sent. Local folders never come here.

`SavedModel` has the methods of `huggingface_hub.ModelHubMixin` with their signatures and does not inherit from it: the package
stays optional, and the mixin's own `save_pretrained` deletes a config.json, by which a directory is a run.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

#: What is fetched: a repository may hold more.
_WANTED = ("model.json", "model.safetensors", "README.md")
#: "name" or "owner/name", as the hub allows it; what begins with a dot, a slash or a tilde is a path.
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?", re.ASCII)


def model_folder(name: str | Path, options: Mapping[str, Any]) -> Path:
    """The folder that `name` means: one that is here, or a repository of the hub, which is then fetched.

    Args:
        name: a folder, or the id of a repository.
        options: for `huggingface_hub.snapshot_download`; not looked at for a folder.

    Raises:
        ValueError: if there is no such folder and it can be no repository.
        ImportError: if it may be a repository and the hub's package is missing.
        OSError: if it cannot be fetched.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if isinstance(name, Path) or not _REPO_ID.fullmatch(name):
        raise ValueError(f"{name}: there is no such folder, expected that of a model or of a run")
    hub = _hub(f"{name}: there is no such folder; to fetch it from the Hugging Face hub instead")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=list(_WANTED), **options))
    except (OSError, ValueError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise OSError(f"{name}: there is no such folder, and the Hugging Face hub did not give it: {first}") from error


def send_folder(
    folder: Path, repo_id: str, *, private: bool | None, token: str | None, options: Mapping[str, Any]
) -> str:
    """Send the files of `folder` to a repository, which is made where there is none.

    Args:
        folder: of a model.
        repo_id: "owner/name", or "name" of one's own.
        private: whether a new repository is; None for the account's default.
        token: None for that of ``hf auth login``.
        options: for `huggingface_hub.HfApi.upload_folder`.

    Returns:
        The address of the commit.

    Raises:
        ImportError: if the hub's package is missing.
        OSError: if the hub does not take it.
    """
    api = _hub(f"{repo_id}: to send a model to the Hugging Face hub").HfApi(token=token)
    repo_id = api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
    return str(api.upload_folder(repo_id=repo_id, repo_type="model", folder_path=folder, **options))


def _hub(purpose: str) -> Any:
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError(f"{purpose}, install its package: pip install 'momatch[hub]'") from error
