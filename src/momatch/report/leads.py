"""How to read each section, for a reader who knows images but not mixtures."""

MAP = (
    "Each point is an image, as the network sees it just before it decides. Images that the network finds alike lie close "
    "together. Rest the mouse on a point, or tap it, to see the image. t-SNE keeps neighbours together, and distances between "
    "far groups mean little; PCA shows the two directions in which images differ most. An image that lies farther out than "
    "95 % of the test images is taken for an outlier. Outliers, distances and log p(x) are judged by the mixture that was "
    "refitted after training, where there is one; the centers shown are those that were learned."
)
GAUSSIANITY = (
    "The model treats each class as a cloud with the shape of a Gaussian. Is it one? Moments of the test images around the "
    "learned center are held against those of a Gaussian: order 1 is how far the cloud lies from it, 2 how far images are from "
    "it (a cloud that is wide, or beside its center), 3 how lopsided, 4 how heavy the tails are. 1 means: as far off as chance "
    "would put as many truly Gaussian samples; below 1 the cloud is narrower than a Gaussian. Choose a class in the heatmap."
)
ERRORS = (
    "Rows are true classes, columns predictions: blue cells are right, orange ones wrong, deeper ones more frequent."
)
CALIBRATION = (
    "Of the predictions made with a given confidence, how many are right? On the dashed line the two agree; below it the "
    "model is too sure of itself, above it too modest."
)
OUTLIERS = (
    "How likely the model finds an image, log p(x). Images that do not belong should lie to the left of those that do. AUROC "
    "is the share of pairs in which the image that does not belong gets the more suspicious score: 1 is perfect, 0.5 is chance."
)
MISTAKES = "Test images that were taken for another class, the surest first: look here for wrong labels and odd images."
OUTLYING = (
    "Images of the unlabelled pool, the farthest from every class first: look here for images that do not belong in the pool. "
    "The score is the distance to the nearest center in standard deviations, of the refitted mixture where there is one; the "
    "energy for a linear head."
)
