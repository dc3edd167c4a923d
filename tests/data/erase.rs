//! Random erasing, against torchvision given the same draws; `tests/fixtures/augment/make.py` asked it.

use kiln_data::{Augment, DataConfig, ErasingFill, Normalization, RandomErasing, Rectangle};

use super::{key, normalized};
use crate::files::file;

/// One rectangle of the mean.
fn erasing(probability: f64) -> RandomErasing {
    RandomErasing { probability, fill: ErasingFill::Mean, count: 1 }
}

fn drawn(probability: f64, size: [usize; 2], sample: u32) -> Option<Rectangle> {
    let mut all = erasing(probability).draw(size, key(sample));
    assert!(all.len() <= 1);
    all.pop()
}

fn pixels(rectangle: &Rectangle) -> usize {
    rectangle.rows.len() * rectangle.columns.len()
}

#[test]
fn what_is_erased_agrees_with_torchvision_given_the_same_draws() {
    let text = std::fs::read_to_string(file("tests/fixtures/augment/erasing.txt")).unwrap();
    assert_eq!(text.lines().count(), 120);
    for line in text.lines() {
        let (numbers, none) = (line.trim_end_matches(" none"), line.ends_with("none"));
        let numbers: Vec<usize> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        let size = [numbers[1], numbers[2]];
        let area = drawn(0.5, size, numbers[0] as u32);
        let area = area.filter(|it| pixels(it) > 0);
        let edges = area.map(|it| [it.rows.start, it.rows.end, it.columns.start, it.columns.end]);
        assert_eq!(edges.is_none(), none, "{line}");
        assert_eq!(edges.unwrap_or_default(), *numbers.get(3..).filter(|_| !none).unwrap_or(&[0; 4]), "{line}");
    }
}

#[test]
fn so_many_images_lose_so_much_as_the_paper_says() {
    let found: Vec<_> = (0..8_000)
        .filter_map(|sample| drawn(0.25, [200, 200], sample))
        .map(|rectangle| {
            (pixels(&rectangle) as f64 / 40_000.0, rectangle.rows.len() as f64 / rectangle.columns.len() as f64)
        })
        .collect();
    assert!((1_860..2_140).contains(&found.len()), "{} of 8000", found.len());
    assert!(found.iter().all(|(area, ratio)| (0.018..0.335).contains(area) && (0.28..3.5).contains(ratio)));
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| found.iter().map(of).sum::<f64>() / found.len() as f64;
    assert!((mean(&|(area, _)| *area) - 0.175).abs() < 0.01);
    assert!(mean(&|(_, ratio)| ratio.ln()).abs() < 0.07, "as often upright as lying");
    let never = (0..1_000).filter_map(|sample| drawn(0.0, [32, 32], sample));
    let always = (0..1_000).filter_map(|sample| drawn(1.0, [32, 32], sample));
    assert_eq!((never.count(), always.count()), (0, 1_000));
}

#[test]
fn exactly_the_drawn_rectangle_becomes_zero_after_normalisation() {
    let (size, plane) = ([12, 20], 240);
    let image: Vec<u8> = (0..3 * plane).map(|index| (index * 37 % 256) as u8).collect();
    let config = DataConfig { random_erasing: 0.6, ..DataConfig::default() };
    let without = DataConfig { random_erasing: 0.0, ..config.clone() };
    let shown = |config: &DataConfig, sample| {
        normalized(&Augment::new(config, Normalization::CIFAR10), &image, size, key(sample))
    };
    let mut erased = 0;
    for sample in 0..100 {
        let area = drawn(0.6, size, sample);
        let inside = |index: usize| {
            let (row, column) = (index % plane / 20, index % 20);
            area.as_ref().is_some_and(|it| it.rows.contains(&row) && it.columns.contains(&column))
        };
        let mut expected = shown(&without, sample);
        expected.iter_mut().enumerate().filter(|(index, _)| inside(*index)).for_each(|(_, value)| *value = 0.0);
        assert_eq!(shown(&config, sample), expected, "sample {sample}");
        erased += usize::from(area.is_some());
    }
    assert!((40..80).contains(&erased));
    let off = DataConfig { augment: false, random_erasing: 1.0, ..DataConfig::default() };
    assert_eq!(shown(&off, 1), shown(&DataConfig { random_erasing: 0.0, ..off.clone() }, 1));
}

#[test]
fn no_size_of_image_is_too_small() {
    for size in [[1, 1], [1, 50], [2, 2]] {
        (0..200).for_each(|sample| {
            let area = drawn(1.0, size, sample);
            assert!(area.is_none_or(|it| it.rows.end <= size[0] && it.columns.end <= size[1]));
        });
    }
}

/// timm's `--recount` and `--remode`.
#[test]
fn several_rectangles_share_the_area_and_lie_independently() {
    let several = RandomErasing { count: 4, ..erasing(1.0) };
    let all: Vec<Vec<Rectangle>> = (0..4_000).map(|sample| several.draw([200, 200], key(sample))).collect();
    for count in 1..=4 {
        let such: Vec<_> = all.iter().filter(|it| it.len() == count).collect();
        assert!((900..1_100).contains(&such.len()), "{} of {count}", such.len());
        let mean = such.iter().map(|it| it.iter().map(pixels).sum::<usize>() as f64).sum::<f64>();
        assert!((mean / such.len() as f64 / 40_000.0 - 0.175).abs() < 0.01, "all of {count} together");
    }
    let tops: Vec<f64> = all.iter().filter(|it| it.len() == 4).map(|it| it[1].rows.start as f64).collect();
    let others: Vec<f64> = all.iter().filter(|it| it.len() == 4).map(|it| it[2].rows.start as f64).collect();
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let together = |a: &[f64], b: &[f64]| {
        let [p, q] = [mean(a), mean(b)];
        a.iter().zip(b).map(|(a, b)| (a - p) * (b - q)).sum::<f64>()
    };
    let correlation = together(&tops, &others) / (together(&tops, &tops) * together(&others, &others)).sqrt();
    assert!(correlation.abs() < 0.12, "{correlation}");
}

#[test]
fn random_colours_are_normal_after_normalisation_and_fill_exactly_the_rectangles() {
    let (size, plane, normalization) = ([60, 80], 4_800, Normalization::IMAGENET);
    let image = vec![7; 3 * plane];
    for (fill, count) in [(ErasingFill::Rand, 2), (ErasingFill::Pixel, 2), (ErasingFill::Mean, 3)] {
        let (mut numbers, mut shades) = (Vec::new(), 0);
        for sample in 0..300 {
            let config = DataConfig {
                random_erasing: 0.7,
                erasing_fill: fill,
                erasing_count: count,
                crop_padding: 0,
                ..DataConfig::default()
            };
            let rectangles = RandomErasing { probability: 0.7, fill, count }.draw(size, key(sample));
            let shown = normalized(&Augment::new(&config, normalization), &image, size, key(sample));
            let before = normalized(&Augment::plain(normalization), &image, size, key(sample));
            for (index, (value, before)) in shown.iter().zip(&before).enumerate() {
                let (row, column) = (index % plane / 80, index % 80);
                let is_inside = rectangles.iter().any(|it| it.rows.contains(&row) && it.columns.contains(&column));
                assert!(is_inside || value == before, "sample {sample}");
                assert!(fill != ErasingFill::Mean || !is_inside || value.abs() < 0.5 / 255.0 / 0.22, "{value}");
            }
            if let Some(last) = rectangles.last() {
                let first = last.rows.start * 80 + last.columns.start;
                let colors = [0, 1, 2].map(|channel| shown[channel * plane + first]);
                numbers.extend(colors);
                let other = first + last.columns.len() - 1;
                shades += usize::from([0, 1, 2].map(|channel| shown[channel * plane + other]) != colors);
            }
        }
        if fill != ErasingFill::Mean {
            let within = numbers.iter().filter(|it| it.abs() < 1.0).count() as f64 / numbers.len() as f64;
            let above = numbers.iter().filter(|it| **it > 0.0).count() as f64 / numbers.len() as f64;
            assert!((within - 0.68).abs() < 0.06 && (above - 0.5).abs() < 0.06, "{fill:?}: {within}, {above}");
        }
        assert_eq!(shades > 100, fill == ErasingFill::Pixel, "{fill:?}: {shades}");
    }
}
