// SPDX-License-Identifier: MIT OR Apache-2.0
//! How two names compare: what counts as the same name, and how far apart two names are.

/// Characters of a name that are compared; a longer name is not a typing mistake, and the comparison is quadratic.
const LONGEST: usize = 64;

/// The form in which names are compared: lower case, without `-`, `_` and white space.
pub(crate) fn normalise(name: &str) -> String {
    name.chars()
        .filter(|c| !c.is_whitespace() && !matches!(c, '-' | '_'))
        .flat_map(char::to_lowercase)
        .collect()
}

/// How far apart two normalised names are: insertions, deletions, replacements and swaps of
/// neighbours, each counting one.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(LONGEST).collect();
    let b: Vec<char> = b.chars().take(LONGEST).collect();
    let width = b.len() + 1;
    let mut rows: Vec<Vec<usize>> = Vec::with_capacity(a.len() + 1);
    rows.push((0..width).collect());
    for (i, &left) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(width);
        row.push(i + 1);
        for (j, &right) in b.iter().enumerate() {
            let mut best = (rows[i][j] + usize::from(left != right))
                .min(rows[i][j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && left == b[j - 1] && a[i - 1] == right {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_case_dashes_and_spaces() {
        assert_eq!(normalise("RTX 6000_Ada-Generation"), "rtx6000adageneration");
        assert_eq!(normalise(" - _ "), "");
    }

    #[test]
    fn distances_count_single_mistakes_once() {
        assert_eq!(distance("h100", "h100"), 0);
        assert_eq!(distance("h10", "h100"), 1);
        assert_eq!(distance("h010", "h100"), 1);
        assert_eq!(distance("", "h100"), 4);
        assert_eq!(distance("é", "e"), 1);
    }
}
