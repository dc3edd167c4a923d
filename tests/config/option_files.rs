//! Files of options in YAML, as timm's `-c FILE.yaml`.

use kiln::config::resolve;

use super::origins::words;
use super::{Cli, Command, config, write};

/// What `python train.py ...` of timm writes beside its checkpoints, and what users keep recipes in.
#[test]
fn a_file_of_options_is_a_line_that_the_command_line_overrides() {
    let dir = tempfile::tempdir().unwrap();
    let text = "aa: rand-m6-mstd0.5-inc1\namp: true\nbatch_size: 512\nbce_loss: true\nclass_map: ''\nclip_grad: null\n\
                crop_pct: 0.95\nepochs: 100\nlr: 8.0e-03\nlr_noise_pct: 0.67\nmodel: resnet50\nopt: lamb\n\
                opt_betas:\n- 0.8\n- 0.98\nscale: [0.08, 1.0]\nresplit: false\nseed: 7\nwandb_tags: []\n";
    let path = write(dir.path(), "a3.yaml", text);
    let path = path.to_str().unwrap();
    let (text, named) = (format!("{text}data: photos\nmodel_kwargs: {{}}\n"), "named.yaml");
    let named = write(dir.path(), named, &text);
    let named = config(&["--as", "timm", "-c", named.to_str().unwrap()]);
    let read = |more: &[&str]| config(&[&["--as", "timm", "photos", "-c", path], more].concat());
    let line = "--as timm photos --aa rand-m6-mstd0.5-inc1 --amp -b 512 --bce-loss --crop-pct 0.95 --epochs 100 --lr 8e-3 \
                --model resnet50 --opt lamb --opt-betas 0.8 0.98 --scale 0.08 1.0 --seed 7";
    assert_eq!(read(&[]), config(&words(line)));
    assert_eq!(named, config(&words(line)), "the directory without a name");
    assert_eq!(read(&["--lr", "1", "--epochs", "3"]).run.epochs, 3);
    assert_eq!(config(&["--epochs", "3", "--as", "timm", "photos", "--config", path]).run.epochs, 3);
    let refused = |name: &str, text: &str| {
        let path = write(dir.path(), name, text);
        let arguments = ["train", "--as", "timm", "x", "-c", path.to_str().unwrap()];
        match Cli::try_parse_from(arguments).and_then(|command| match command {
            Command::Train(options) => resolve(&options.request),
            _ => panic!("it trains"),
        }) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{name} is no recipe"),
        }
    };
    assert!(refused("a.yaml", "callbacks:\n- class_path: a.B\n").contains("sections in a list ('callbacks')"));
    assert!(refused("b.yaml", "lr: [0.1\n").contains("is not YAML"));
    assert!(refused("c.yml", "a: &a [x]\nb: [*a, *a]\n").contains("anchor"));
    assert!(refused("d.yaml", "warmth: 3\nlr: fast\n").contains("--warmth"));
    assert!(refused("e.yaml", "- 3\n").contains("option: value"));
    let unknown = refused("f.yaml", "trainer:\n  warmth: 3\n  max_epochs: 2\n");
    assert!(unknown.contains("'trainer.warmth'"), "{unknown}");
    let missing = Cli::try_parse_from(["train", "-c", "nowhere.yaml"]).unwrap_err().to_string();
    assert!(missing.contains("nowhere.yaml"), "{missing}");
}

/// What Lightning's command line reads and writes.
#[test]
fn sections_are_settings() {
    let dir = tempfile::tempdir().unwrap();
    let text = "seed_everything: 7\ntrainer:\n  max_epochs: 12\n  precision: bf16-mixed\n  sync_batchnorm: false\n  \
                callbacks: null\nmodel:\n  optimizer:\n    lr: 0.2\ndata:\n  data_dir: photos\n";
    let path = write(dir.path(), "lightning.yaml", text);
    let read =
        |more: &[&str]| config(&[&["--as", "lightning", "fit", "--config", path.to_str().unwrap()], more].concat());
    let line = "--as lightning fit --seed_everything 7 trainer.max_epochs=12 trainer.precision=bf16-mixed \
                trainer.sync_batchnorm=false model.optimizer.lr=0.2 data.data_dir=photos";
    assert_eq!(read(&[]), config(&words(line)));
    assert_eq!(read(&["--trainer.max_epochs", "3"]).run.epochs, 3, "the command line wins");
}
