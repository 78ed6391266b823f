// SPDX-License-Identifier: MIT OR Apache-2.0
//! The corpus that fuzzing left behind, run through the functions of the fuzz targets with any compiler.

#[path = "../../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "it is the library of the fuzz targets")]
mod fuzz;

use std::path::Path;

#[test]
fn every_kept_input_keeps_every_promise() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (target, run) in fuzz::TARGETS {
        let folder = std::fs::read_dir(corpus.join(target)).expect("each target has a corpus");
        let mut inputs = 0;
        for entry in folder {
            let path = entry.expect("the corpus is readable").path();
            let input = std::fs::read(&path).expect("the corpus is readable");
            // The name of the input that fails is above its panic in the output of the test.
            eprint_name(&path);
            run(&input);
            inputs += 1;
        }
        assert!(inputs > 0, "{target} has an empty corpus");
    }
}

#[expect(clippy::print_stderr, reason = "shown only if the test fails")]
fn eprint_name(path: &Path) {
    eprintln!("{}", path.display());
}
