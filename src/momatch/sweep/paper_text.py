"""What the paper has to show for a claim, in a sentence: all of its datasets, each figure with its spread and runs."""

from momatch.sweep.figures import FIGURES
from momatch.sweep.paper import CIFAR10_WIDE, STL10_WIDE, paper_figures
from momatch.sweep.verdict import Place, named

_OTHERS = (CIFAR10_WIDE, STL10_WIDE)


def quote(grid: str, figure: str, *places: Place) -> str:
    """The paper's figures of some cells, dataset by dataset, as mean ± std (runs); (n ?) where it does not give the runs."""
    known = [entry for entry in paper_figures(grid, figure) if (entry.row, entry.column) in places]
    known.sort(key=lambda entry: places.index((entry.row, entry.column)))
    sentences = []
    for dataset in dict.fromkeys(entry.source.partition(",")[0] for entry in known):
        texts = [
            f"{named((entry.row, entry.column))} {entry.text(FIGURES[figure].decimals)}"
            + (" as others published it" if entry.source in _OTHERS else "")
            for entry in known
            if entry.source.partition(",")[0] == dataset
        ]
        sentences.append(f"{dataset}: {'; '.join(texts)}.")
    return " ".join(sentences)
