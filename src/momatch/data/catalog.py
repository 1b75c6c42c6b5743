"""The known datasets: official files, checksums and sizes. Imports nothing heavy.

URLs and MD5 sums are those of the datasets' own pages and of torchvision.
"""

from dataclasses import dataclass, field

DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class RemoteFile:
    """An official file.

    Attributes:
        url: its URL.
        md5: its checksum.
        megabytes: approximate size.
        is_archive: whether it is a .tar.gz that unpacks to the layout's folder.
    """

    url: str
    md5: str
    megabytes: int
    is_archive: bool = False

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Layout:
    """One layout of a dataset on disk.

    Attributes:
        folders: accepted folders under the data directory; downloads go to the first.
        members: required files, plain or gzipped (``.gz``).
        remote: the official files; empty if another layout is the one to download.
    """

    folders: tuple[str, ...]
    members: tuple[str, ...]
    remote: tuple[RemoteFile, ...] = ()


@dataclass(frozen=True)
class Known:
    """A dataset known by name.

    Attributes:
        title: one line for the listing.
        num_train: official number of training images, including unlabelled ones.
        num_test: official number of test images.
        class_names: label k is ``class_names[k]``; empty if the files contain the names.
        layouts: accepted layouts; the first one found is read, the first in the list is downloaded. Empty if no files.
        flip: whether a mirrored image still shows its class.
    """

    title: str
    num_train: int
    num_test: int
    class_names: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = field(default=())
    flip: bool = True


IDX_MEMBERS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def _idx(folders: tuple[str, ...], url: str, md5: tuple[str, ...], megabytes: tuple[int, ...]) -> tuple[Layout, ...]:
    remote = tuple(
        RemoteFile(f"{url}{member}.gz", checksum, size)
        for member, checksum, size in zip(IDX_MEMBERS, md5, megabytes, strict=True)
    )
    return (Layout(folders, IDX_MEMBERS, remote),)


_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"

SVHN_EXTRA = RemoteFile(f"{_SVHN}extra_32x32.mat", "a93ce644f1a588dc4d68dda5feec44a7", 1330)

KNOWN = {
    "digits": Known("8x8 gray handwritten digits, inside scikit-learn", 1297, 500, DIGITS, flip=False),
    "mnist": Known(
        "28x28 gray handwritten digits",
        60_000,
        10_000,
        DIGITS,
        _idx(
            ("mnist", "MNIST/raw"),
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            (10, 1, 2, 1),
        ),
        flip=False,
    ),
    "fashion-mnist": Known(
        "28x28 gray clothes",
        60_000,
        10_000,
        (
            "t-shirt/top",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
        _idx(
            ("fashion-mnist", "FashionMNIST/raw"),
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            (26, 1, 4, 1),
        ),
    ),
    "kmnist": Known(
        "28x28 gray cursive Japanese characters",
        60_000,
        10_000,
        ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        _idx(
            ("kmnist", "KMNIST/raw"),
            "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
            (
                "bdb82020997e1d708af4cf47b453dcf7",
                "e144d726b3acfaa3e44228e80efcd344",
                "5c965bf0a639b31b8f53240b1b52f4d7",
                "7320c461ea6c1c855c0b718fb2a4b134",
            ),
            (18, 1, 3, 1),
        ),
        flip=False,
    ),
    "cifar10": Known(
        "32x32 colour objects and animals",
        50_000,
        10_000,
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        (
            Layout(
                ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
                (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
                (RemoteFile(f"{_CIFAR}cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 162, True),),
            ),
            Layout(
                ("cifar-10-batches-py", "cifar10/cifar-10-batches-py"),
                (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
            ),
        ),
    ),
    "cifar100": Known(
        "32x32 colour, 100 classes",
        50_000,
        10_000,
        (),
        (
            Layout(
                ("cifar-100-binary", "cifar100/cifar-100-binary"),
                ("train.bin", "test.bin", "fine_label_names.txt"),
                (RemoteFile(f"{_CIFAR}cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 161, True),),
            ),
            Layout(("cifar-100-python", "cifar100/cifar-100-python"), ("train", "test", "meta")),
        ),
    ),
    "svhn": Known(
        "32x32 colour house numbers",
        73_257,
        26_032,
        DIGITS,
        (
            Layout(
                ("svhn", "SVHN"),
                ("train_32x32.mat", "test_32x32.mat"),
                (
                    RemoteFile(f"{_SVHN}train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182),
                    RemoteFile(f"{_SVHN}test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64),
                ),
            ),
        ),
        flip=False,
    ),
    "stl10": Known(
        "96x96 colour objects and animals, with 100,000 unlabelled",
        105_000,
        8_000,
        ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
        (
            Layout(
                ("stl10_binary", "stl10/stl10_binary"),
                ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin"),
                (
                    RemoteFile(
                        "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
                        "91f7769df0f17e558f3565bffb0c7dfb",
                        2640,
                        True,
                    ),
                ),
            ),
        ),
    ),
}
