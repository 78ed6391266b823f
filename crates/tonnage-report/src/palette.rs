// SPDX-License-Identifier: MIT OR Apache-2.0
//! The colours of categories, for every picture: the page, notebooks and the terminal.
//!
//! One colour each that reads on white and on near-black, so that a picture in a notebook, which does not know the
//! theme around it, has the colours of the page. They differ in lightness as well as in hue, and no meaning hangs on
//! colour alone.

use tonnage_analysis::holdings::Category;

/// The colour of a category as `#rrggbb`.
///
/// ```
/// use tonnage_analysis::holdings::Category;
///
/// assert_eq!(tonnage_report::colour(Category::Weights), "#3b76c4");
/// ```
pub const fn colour(category: Category) -> &'static str {
    match category {
        Category::Weights => "#3b76c4",
        Category::Buffers => "#8fb8e6",
        Category::Gradients => "#e08a1e",
        Category::OptimizerState => "#8f72c6",
        Category::Activations => "#2f9e77",
        Category::Temporaries => "#d9667f",
        Category::Workspaces => "#9c7a4c",
        Category::KvCache => "#38b0c2",
        Category::Other => "#878d97",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = u8::from_str_radix(&colour[at..at + 2], 16).unwrap();
            let value = f64::from(value) / 255.0;
            if value <= 0.040_45 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    /// The ratio of two luminances as WCAG counts it.
    fn contrast(one: f64, other: f64) -> f64 {
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn every_colour_is_seen_on_white_and_on_the_dark_theme_and_is_its_own() {
        for (index, category) in Category::ALL.into_iter().enumerate() {
            let own = luminance(colour(category));
            assert!(contrast(own, 1.0) >= 1.9, "{category:?} on white");
            let dark = luminance("#1b1f26");
            assert!(contrast(own, dark) >= 3.0, "{category:?} on dark");
            let others = &Category::ALL[..index];
            assert!(others.iter().all(|&one| colour(one) != colour(category)));
        }
    }
}
