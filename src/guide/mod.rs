//! The guide: how to use Kiln, page by page. The same files read well on a code host.
//!
//! 1. [Getting started](getting_started): install, train, look at the result
//! 2. [Concepts](concepts): world, replica, device, generation, precision
//! 3. [Configuration](configuration): flags, keys, files, and their precedence
//! 4. [Data](data): sources of images, decoding, augmentation
//! 5. [Recipes](recipes): commands for common tasks
//! 6. [Weights](weights): import and export
//! 7. [Many machines](many_machines): by hand, launchers, SLURM, MPI, containers
//! 8. [Elastic runs](elastic): processes that come and go
//! 9. [Reliability and security](reliability): guarantees, checkpoints, security
//! 10. [Measurements](measurements): speed, scaling, accuracy, memory
//! 11. [Coming from](coming_from): options of PyTorch, Lightning, Hydra, timm and TensorFlow, and a comparison
//! 12. [Troubleshooting](troubleshooting): symptoms and remedies
//! 13. [Platforms and versions](platforms): what is tested, and compatibility
//! 14. [Architecture](architecture): how a step works and why its bits are equal
//! 15. [Contributing](contributing): the rules, and what a change must prove
//! 16. [Changelog](changelog)

/// A page, with a drawing at its end. Its links to other pages lead to modules here, and to files where the file itself
/// is read.
macro_rules! page {
    ($($name:ident $(: $drawing:literal)?),*) => {$(
        #[doc = include_str!("links.txt")]
        #[doc = include_str!(concat!(stringify!($name), ".md"))]
        $(#[doc = include_str!($drawing)])?
        pub mod $name {}
    )*};
}

page!(
    getting_started,
    concepts: "replicas.svg",
    configuration,
    data,
    recipes,
    weights,
    many_machines,
    elastic,
    reliability,
    measurements: "cifar10.svg",
    coming_from,
    troubleshooting,
    platforms,
    architecture,
    contributing,
    changelog
);
