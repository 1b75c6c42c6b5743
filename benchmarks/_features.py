"""What the benchmarks on features files share."""


def about(path, dataset):
    """Which images a features file holds, and by which backbones, without the folders of their files."""
    backbones = " and ".join(name.rpartition("/")[2] for name in dataset.features.backbone.split(","))
    return (
        f"{path.stem}: {backbones} at {dataset.features.image_size[1]} px, {len(dataset.train):,} images of "
        f"{dataset.num_classes} classes, {len(dataset.test):,} to test"
    )
