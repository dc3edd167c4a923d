//! Which frequencies of input, kernel and output meet in a product, for each stride.

use std::array::from_fn;
use std::sync::LazyLock;

/// What is multiplied or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Input,
    Kernel,
    Output,
}

/// The frequencies of a product, by [`Side`].
type Product = [usize; 3];

/// The products of one tile.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) stride: usize,
    /// Least pixels of the output per tile, on average: then at most half of the definition's multiplications remain
    /// for stride 1, three quarters for stride 2.
    pub(super) least_pixels: usize,
    /// The products in which each frequency takes part, by [`Side`].
    products: [Vec<Vec<Product>>; 3],
}

/// Those of stride 1 and 2.
static FORMS: LazyLock<[Form; 2]> = LazyLock::new(|| {
    [
        // Each frequency meets itself.
        Form::of(1, 8, &[[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3], [4, 4, 4], [5, 5, 5]]),
        // The four points of one tap on the even pixels, then the five points of two taps on the odd pixels.
        Form::of(
            2,
            12,
            &[[0, 0, 0], [1, 0, 1], [2, 0, 2], [3, 0, 3], [4, 1, 0], [5, 2, 1], [6, 3, 2], [7, 4, 3], [8, 5, 4]],
        ),
    ]
});

impl Form {
    /// `None` for strides above 2.
    pub(super) fn new(stride: usize) -> Option<&'static Self> {
        FORMS.iter().find(|form| form.stride == stride)
    }

    /// From the products of one axis.
    fn of(stride: usize, least_pixels: usize, axis: &[Product]) -> Self {
        let sizes: Product = from_fn(|side| axis.iter().map(|product| product[side] + 1).max().unwrap_or(0));
        let mut products = sizes.map(|size| vec![Vec::new(); size * size]);
        for (row, column) in axis.iter().flat_map(|row| axis.iter().map(move |column| (row, column))) {
            let product: Product = from_fn(|side| row[side] * sizes[side] + column[side]);
            (0..3).for_each(|side| products[side][product[side]].push(product));
        }
        Self { stride, least_pixels, products }
    }

    /// Frequencies of a tile.
    pub(super) fn frequencies(&self, side: Side) -> usize {
        self.products[side as usize].len()
    }

    /// The products in which a frequency of `side` takes part.
    pub(super) fn products(&self, side: Side, frequency: usize) -> &[Product] {
        &self.products[side as usize][frequency]
    }
}
