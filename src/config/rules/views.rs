//! Rules for several views of an image in a step, and for what needs them.

use kiln_engine::optim::LossKind;

use super::Rules;

impl Rules<'_> {
    pub(super) fn views(&mut self) {
        const KEY: &str = "data.views";
        const MORE: &str = "use data.views=3, timm's --aug-splits 3";
        let (data, loss) = (&self.merged.config.data, self.merged.config.optim.loss);
        let parts = self.merged.config.model.bn_parts;
        let has_several = data.views > 1;
        for (key, clashes, rule, remedy) in [
            ("data.augment", !data.augment, "views need augmentation", "use data.augment=true or data.views=1"),
            ("data.mixup", data.mixup > 0.0, "views cannot be combined with mixup", "remove --mixup"),
            ("data.cutmix", data.cutmix > 0.0, "views cannot be combined with cutmix", "remove --cutmix"),
        ] {
            self.require(!(has_several && clashes), &[KEY, key], rule, remedy);
        }
        for (key, needs, rule) in [
            ("data.erase_first_view", !data.erase_first_view, "a first view that is not erased needs others"),
            ("optim.loss", loss == LossKind::Jsd, "loss 'jsd' compares several views"),
        ] {
            self.require(has_several || !needs, &[key, KEY], rule, MORE);
        }
        let broken = format!("bn parts must be 1, or the number of views '{}', got '{parts}'", data.views);
        let remedy = format!("use data.views={parts}, timm's --aug-splits {parts}, or model.bn_parts=1");
        self.require(parts <= 1 || parts == data.views, &["model.bn_parts", KEY], broken, &remedy);
    }
}
