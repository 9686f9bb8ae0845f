/work/wt-proof/benches/jobs/target/release/deps/utf_types-b13ac72eec2543a2.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/utf_types-1.0.0/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/utf_types-1.0.0/src/utf16.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/utf_types-1.0.0/src/utf8.rs

/work/wt-proof/benches/jobs/target/release/deps/libutf_types-b13ac72eec2543a2.rlib: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/utf_types-1.0.0/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/utf_types-1.0.0/src/utf16.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/utf_types-1.0.0/src/utf8.rs

/work/wt-proof/benches/jobs/target/release/deps/libutf_types-b13ac72eec2543a2.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/utf_types-1.0.0/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/utf_types-1.0.0/src/utf16.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/utf_types-1.0.0/src/utf8.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/utf_types-1.0.0/src/lib.rs:
/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/utf_types-1.0.0/src/utf16.rs:
/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/utf_types-1.0.0/src/utf8.rs:
