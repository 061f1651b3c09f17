"""What data sets there are: their files, with sizes, checksums and public addresses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A file as it was published: None where a size or checksum is not known. `urls` are mirrors, the first is best."""

    name: str
    bytes: int | None = None
    sha256: str | None = None
    md5: str | None = None
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Form:
    """The files in which a data set comes; `archive` is the zip to unpack where they are not published one by one."""

    title: str
    files: tuple[File, ...]
    archive: File | None = None


@dataclass(frozen=True)
class DataSet:
    """A data set: it lives in `folder() / directory`, in one of its forms; an earlier form is preferred."""

    title: str
    content: str
    directory: str
    licence: str
    source: str
    forms: tuple[Form, ...]
    table: bool = False
    bring: str = ""
    """Of a data set that nobody can download just so: what to ask for or to make, and where, in sentences."""


def _files(text: str, *hosts: str) -> tuple[File, ...]:
    """Files from lines `name bytes sha256`, all of them found under each of the hosts."""
    rows = (line.split() for line in text.strip().splitlines())
    return tuple(File(name, int(size), sha256, urls=tuple(h + name for h in hosts)) for name, size, sha256 in rows)


CATALOGUE: dict[str, DataSet] = {
    "mnist": DataSet(
        title="MNIST: handwritten digits, 28 x 28",
        content="60,000 + 10,000 images, 10 classes",
        directory="mnist",
        licence="CC BY-SA 3.0, as commonly stated",
        source="LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, 1998",
        forms=(
            Form(
                "idx files",
                _files(
                    """
                    train-images-idx3-ubyte.gz 9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
                    train-labels-idx1-ubyte.gz 28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
                    t10k-images-idx3-ubyte.gz 1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
                    t10k-labels-idx1-ubyte.gz 4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
                    """,
                    "https://ossci-datasets.s3.amazonaws.com/mnist/",
                    "https://storage.googleapis.com/cvdf-datasets/mnist/",
                ),
            ),
        ),
    ),
    "fmnist": DataSet(
        title="Fashion-MNIST: pictures of clothes, 28 x 28",
        content="60,000 + 10,000 images, 10 classes",
        directory="fashion-mnist",
        licence="MIT",
        source="Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset, 2017; github.com/zalandoresearch",
        forms=(
            Form(
                "idx files",
                _files(
                    """
                    train-images-idx3-ubyte.gz 26421880 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84
                    train-labels-idx1-ubyte.gz 29515 a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845
                    t10k-images-idx3-ubyte.gz 4422102 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073
                    t10k-labels-idx1-ubyte.gz 5148 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5
                    """,
                    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
                    "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/",
                ),
            ),
        ),
    ),
    "emnist": DataSet(
        title="EMNIST byclass: handwritten digits and letters, 28 x 28",
        content="697,932 + 116,323 images, 62 classes; in the subset 54,948 + 12,133",
        directory="emnist",
        licence="public domain (US government), as commonly stated",
        source="Cohen, Afshar, Tapson and van Schaik, EMNIST: extending MNIST to handwritten letters, 2017; NIST",
        forms=(
            Form(
                "a subset of the official test split",
                _files(
                    """
                    emnist-byclass-subset-train-images-idx3-ubyte.gz 13635198 8103dcb7b45fcf279ff5ef39c62d20c93ab13d40e0a90310a2b070ef4a8f4898
                    emnist-byclass-subset-train-labels-idx1-ubyte.gz 40303 465b75cddd1744082543039b900b8afffa52ca467adee2d8f028453f59f9d493
                    emnist-byclass-subset-test-images-idx3-ubyte.gz 3013215 330a979d3519b92a280cf145b1fcb5513c083577f327ae1d372d5ae32e9abd66
                    emnist-byclass-subset-test-labels-idx1-ubyte.gz 8979 b75d1e38635f4472cc8e842cf0ca937cd86c24d616dc545daf7dafc1e6f5c2f7
                    mapping.txt 509 431121aba987d05b427cda42cccffc7fe3a1351e0e4773aaab2d9f3211b39c89
                    source-index.npz 187501 e2f4444bcbf8d6a751d974d07590d32c8ab1bd98d0baa04321be4e7806fa37aa
                    """  # noqa: E501
                ),
            ),
            Form(
                "the official files",
                (
                    File("emnist-byclass-train-images-idx3-ubyte.gz", md5="712dda0bd6f00690f32236ae4325c377"),
                    File("emnist-byclass-train-labels-idx1-ubyte.gz", md5="ee299a3ee5faf5c31e9406763eae7e43"),
                    File("emnist-byclass-test-images-idx3-ubyte.gz", md5="1435209e34070a9002867a9ab50160d7"),
                    File("emnist-byclass-test-labels-idx1-ubyte.gz", md5="7a0f934bd176c798ecba96b36fda6657"),
                ),
                archive=File(
                    "gzip.zip",
                    561753746,
                    "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
                    "58c8d27c78d21e728a6bc7b3cc06412e",
                    ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
                ),
            ),
        ),
    ),
    "cifar100": DataSet(
        title="CIFAR-100: colour photographs, 32 x 32",
        content="50,000 + 10,000 images, 100 classes",
        directory="cifar100",
        licence="no formal licence: cite Krizhevsky 2009",
        source="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
        forms=(
            Form(
                "arrays without pickles",
                _files(
                    """
                    train-0.npz 20627984 1e510aa238210f6e1c750e9eb3baec7795de7d071006d45a2b7c5fcdc4525e29
                    train-1.npz 20674685 46d457dea8b20746fbd4b13d8c8f7df10b0912e1e7b792085e33d50cca6aff83
                    train-2.npz 20561134 90989de9eeecd380cec86ffb3f5b5a59e97d7a535e0c97f095f0e2b78ff9cb0e
                    train-3.npz 20618342 aa50d75badb63dd4cf0d593614e408ef63a1396c9b8822a5fd7518ed36dda272
                    train-4.npz 20623466 fd4ff0be6c392fed7a7676b0a8d5322e310bf32188ed83486ceebea7cf09b884
                    test.npz 20639658 58b492aa7efd09680c86c9959e77c25c7dcfba643957654249b1552218d22ba3
                    labels.csv 2939 0ad5328d75a7e14e45a9e9523ac83e50244e80f071dd42a8b981c5ea71a3bf88
                    """
                ),
            ),
            Form(
                "the original archive",
                (
                    File(
                        "cifar-100-python.tar.gz",
                        169001437,
                        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                        "eb9058c3a382ffc7106e4002c42a8d85",
                        (
                            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                            "https://cave.cs.toronto.edu/kriz/cifar-100-python.tar.gz",
                        ),
                    ),
                ),
            ),
        ),
    ),
    "heart": DataSet(
        title="Heart disease: patients of four hospitals, 13 findings each",
        content="303 + 294 + 123 + 200 rows, 2 or 5 classes",
        directory="heart-disease",
        table=True,
        licence="CC BY 4.0, as commonly stated",
        source="Janosi, Steinbrunn, Pfisterer and Detrano, Heart Disease, UCI Machine Learning Repository, 1989",
        forms=(
            Form(
                "UCI's processed tables",
                _files(
                    """
                    processed.cleveland.data 18461 a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8
                    processed.hungarian.data 10263 d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796
                    processed.switzerland.data 4109 834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314
                    processed.va.data 6737 e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f
                    heart-disease.names 10060 ec7ed5aa4ed8321097808f47b836301c2a0c36f3bb09c40b8b43b622363e6b61
                    """,
                    "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
                ),
            ),
        ),
    ),
    "fl60": DataSet(
        title="FL-60: points of the plane in 60 domains, with a graph (GRDA's DG-60)",
        content="60 x 100 points, 2 classes; synthetic",
        directory="dg",
        licence="no licence stated",
        source="Xu, Liu, Du, He, Wang and Wang, Graph-relational domain adaptation, 2022; github.com/Wang-ML-Lab/GRDA",
        forms=(
            Form(
                "arrays without pickles",
                _files("dg60.npz 95298 898098d60e3baf70c5a47a284667da5035326a9874d41188803f7277183d6483"),
            ),
        ),
        bring="This form of data/toy_d60_spiral.pkl in github.com/Wang-ML-Lab/GRDA has no public address: take a "
        "mirror that has it, or do without, as data.settings.variant = 'generated' draws domains by the same rule.",
    ),
    "tpt48": DataSet(
        title="TPT-48: monthly temperatures of 48 states of the USA, with a graph",
        content="144 months, 2008-2019, 105 borders",
        directory="tpt48",
        licence="public domain (US government); the repository CC BY-NC-SA 4.0",
        source="NOAA nClimDiv; github.com/washingtonpost/data-2C-beyond-the-limit-usa; borders written by hand",
        forms=(
            Form(
                "tables",
                _files(
                    """
                    tpt48_2008_2019.csv 35720 9efbc650cc39dd77a68272d9d4cbc22ad09b6a8e9d4c6cb9615e4f9f6f09254d
                    state_adjacency.csv 646 e95e4277e0c2f53a3690822c9772e7bd5a5a90784668a66808e13dfb5c9e6620
                    """
                ),
            ),
        ),
        bring="These tables have no public address: name a mirror that has them. Temperatures are those of "
        "data/raw/climdiv-tmpcst-v1.0.0-20200106 in github.com/washingtonpost/data-2C-beyond-the-limit-usa, a row a "
        "month and a column a state.",
    ),
    "metr_la": DataSet(
        title="METR-LA: speeds at 207 road sensors in Los Angeles, with a graph",
        content="34,272 steps of five minutes, 2012; 8 % missing",
        directory="metr-la",
        licence="CC BY 4.0, as commonly stated; graph MIT",
        source="Jagadish et al., Big data and its technical challenges, 2014; Li, Yu, Shahabi and Liu, DCRNN, 2018",
        forms=(
            Form(
                "arrays without pickles",
                _files(
                    """
                    metr-la.npz 8674484 20668e7d39e43b4e77983aec286fea3f99af05f2568021c73ad8d147958abc10
                    adjacency.npz 10594 473032263efcf2c5888477c372944db8b786057c959ffb83301af1b2a87e2768
                    sensor_locations.csv 6341 eb8ea96e07358b45d0e4ba3b89c2673fa20c54af50150249e627389e749ade6f
                    """
                ),
            ),
            Form("DCRNN's own files", (File("metr-la.h5"), File("adj_mx.pkl"))),
        ),
        bring="In place of these, metr-la.h5 and adj_mx.pkl will do: github.com/liyaguang/DCRNN says where the first "
        "is to be had, and has the second in data/sensor_graph.",
    ),
    "pems_bay": DataSet(
        title="PEMS-BAY: speeds at 325 road sensors in the Bay Area, with a graph",
        content="52,116 steps of five minutes, 2017",
        directory="pems-bay",
        licence="CC BY 4.0, as commonly stated",
        source="California's Performance Measurement System (PeMS); Li, Yu, Shahabi and Liu, DCRNN, 2018",
        forms=tuple(
            Form(f"{speeds} and {graph}", (File(speeds), File(graph)))
            for speeds in ("pems-bay.npz", "pems-bay.h5")
            for graph in ("adjacency.npz", "adj_mx_bay.pkl", "distances_bay_2017.csv")
        ),
        bring="github.com/liyaguang/DCRNN says where pems-bay.h5 is to be had, and has adj_mx_bay.pkl and "
        "distances_bay_2017.csv in data/sensor_graph, either of which gives the graph; docs/forecasting.md says how to "
        "make a pems-bay.npz.",
    ),
    "compcars": DataSet(
        title="CompCars: photographs of cars, 5 viewpoints x 6 years of make",
        content="24,151 images, 4 types of car",
        directory="compcars",
        licence="for research, by a signed agreement",
        source="Yang, Luo, Loy and Tang, A large-scale car dataset for fine-grained categorization, 2015",
        forms=(
            Form("features of images", (File("features.npz"),)),
            Form("the original folders", (File("data/misc/attributes.txt"),)),
        ),
        bring="Its authors give it to those who sign their agreement: ask at mmlab.ie.cuhk.edu.hk/datasets/comp_cars. "
        "Put the original folder `data` there, or a features.npz made of it, as docs/data.md says.",
    ),
}
