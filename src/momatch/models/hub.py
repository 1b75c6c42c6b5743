"""Download models from the Hugging Face hub and upload them; its package is optional.

`SavedModel` has the methods of `huggingface_hub.ModelHubMixin`, with the same signatures, but does not inherit from it: the
package stays optional, and the mixin's `save_pretrained` deletes config.json, which marks a run directory.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

#: Files to download; a repository may hold more.
_WANTED = ("model.json", "model.safetensors", "README.md")
#: "name" or "owner/name", as the hub allows; anything that starts with a dot, slash or tilde is a path.
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?", re.ASCII)


def model_folder(name: str | Path, options: Mapping[str, Any]) -> Path:
    """The local folder `name`, or a downloaded copy of that hub repository.

    Args:
        name: a folder, or a repository id.
        options: for `huggingface_hub.snapshot_download`; ignored for a folder.

    Raises:
        ValueError: if there is no such folder and `name` is not a valid repository id.
        ImportError: if it may be a repository and huggingface_hub is not installed.
        OSError: if the download fails.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if isinstance(name, Path) or not _REPO_ID.fullmatch(name):
        raise ValueError(f"{name}: no such folder, expected a model folder or a run directory")
    hub = _hub(f"{name}: no such folder; to download it from the Hugging Face hub instead")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=list(_WANTED), **options))
    except (OSError, ValueError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise OSError(f"{name}: no such folder, and the download from the Hugging Face hub failed: {first}") from error


def send_folder(
    folder: Path, repo_id: str, *, private: bool | None, token: str | None, options: Mapping[str, Any]
) -> str:
    """Upload the files of `folder` to a repository, which is created if needed.

    Args:
        folder: a model folder.
        repo_id: "owner/name", or "name" in your own account.
        private: visibility of a new repository; None for the account's default.
        token: None for the one saved by ``hf auth login``.
        options: for `huggingface_hub.HfApi.upload_folder`.

    Returns:
        The URL of the commit.

    Raises:
        ImportError: if huggingface_hub is not installed.
        OSError: if the upload fails.
    """
    api = _hub(f"{repo_id}: to upload a model to the Hugging Face hub").HfApi(token=token)
    repo_id = api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
    return str(api.upload_folder(repo_id=repo_id, repo_type="model", folder_path=folder, **options))


def _hub(purpose: str) -> Any:
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError(f"{purpose}, install its package: pip install 'momatch[hub]'") from error
