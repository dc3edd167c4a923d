//! Random erasing, against torchvision given the same draws; `tests/fixtures/augment/make.py` asked it.

use kiln_data::{Augment, DataConfig, Normalization, RandomErasing, SampleKey};

use crate::files::file;

fn key(sample: u32) -> SampleKey {
    SampleKey { seed: 3, epoch: 5, sample }
}

#[test]
fn what_is_erased_agrees_with_torchvision_given_the_same_draws() {
    let text = std::fs::read_to_string(file("tests/fixtures/augment/erasing.txt")).unwrap();
    assert_eq!(text.lines().count(), 120);
    for line in text.lines() {
        let (numbers, none) = (line.trim_end_matches(" none"), line.ends_with("none"));
        let numbers: Vec<usize> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        let size = [numbers[1], numbers[2]];
        let drawn = RandomErasing { probability: 0.5 }.draw(size, key(numbers[0] as u32));
        let drawn = drawn.filter(|rectangle| rectangle.area() > 0);
        let edges = drawn.map(|it| [it.rows.start, it.rows.end, it.columns.start, it.columns.end]);
        assert_eq!(edges.is_none(), none, "{line}");
        assert_eq!(edges.unwrap_or_default(), *numbers.get(3..).filter(|_| !none).unwrap_or(&[0; 4]), "{line}");
    }
}

#[test]
fn so_many_images_lose_so_much_as_the_paper_says() {
    let drawn: Vec<_> = (0..8_000)
        .filter_map(|sample| RandomErasing { probability: 0.25 }.draw([200, 200], key(sample)))
        .map(|rectangle| {
            (rectangle.area() as f64 / 40_000.0, rectangle.rows.len() as f64 / rectangle.columns.len() as f64)
        })
        .collect();
    assert!((1_860..2_140).contains(&drawn.len()), "{} of 8000", drawn.len());
    assert!(drawn.iter().all(|(area, ratio)| (0.018..0.335).contains(area) && (0.28..3.5).contains(ratio)));
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| drawn.iter().map(of).sum::<f64>() / drawn.len() as f64;
    assert!((mean(&|(area, _)| *area) - 0.175).abs() < 0.01);
    assert!(mean(&|(_, ratio)| ratio.ln()).abs() < 0.07, "as often upright as lying");
    let never = (0..1_000).filter_map(|sample| RandomErasing { probability: 0.0 }.draw([32, 32], key(sample)));
    let always = (0..1_000).filter_map(|sample| RandomErasing { probability: 1.0 }.draw([32, 32], key(sample)));
    assert_eq!((never.count(), always.count()), (0, 1_000));
}

#[test]
fn exactly_the_drawn_rectangle_becomes_zero_after_normalisation() {
    let (size, plane) = ([12, 20], 240);
    let image: Vec<u8> = (0..3 * plane).map(|index| (index * 37 % 256) as u8).collect();
    let config = DataConfig { random_erasing: 0.6, ..DataConfig::default() };
    let without = DataConfig { random_erasing: 0.0, ..config.clone() };
    let shown = |config: &DataConfig, sample| {
        Augment::new(config, Normalization::CIFAR10).normalized(&image, size, key(sample))
    };
    let mut erased = 0;
    for sample in 0..100 {
        let drawn = RandomErasing { probability: 0.6 }.draw(size, key(sample));
        let inside = |index: usize| {
            let (row, column) = (index % plane / 20, index % 20);
            drawn.as_ref().is_some_and(|it| it.rows.contains(&row) && it.columns.contains(&column))
        };
        let mut expected = shown(&without, sample);
        expected.iter_mut().enumerate().filter(|(index, _)| inside(*index)).for_each(|(_, value)| *value = 0.0);
        assert_eq!(shown(&config, sample), expected, "sample {sample}");
        erased += usize::from(drawn.is_some());
    }
    assert!((40..80).contains(&erased));
    let off = DataConfig { augment: false, random_erasing: 1.0, ..DataConfig::default() };
    assert_eq!(shown(&off, 1), shown(&DataConfig { random_erasing: 0.0, ..off.clone() }, 1));
}

#[test]
fn no_size_of_image_is_too_small() {
    for size in [[1, 1], [1, 50], [2, 2]] {
        (0..200).for_each(|sample| {
            let drawn = RandomErasing { probability: 1.0 }.draw(size, key(sample));
            assert!(drawn.is_none_or(|it| it.rows.end <= size[0] && it.columns.end <= size[1]));
        });
    }
}
