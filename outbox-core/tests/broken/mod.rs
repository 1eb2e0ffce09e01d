//! What a suite is worth is what it catches.

/// One test per flaw: each of these cases fails on it.
macro_rules! caught {
    ($runner:ident, $make:expr, $($test:ident: $flaw:ident => [$($module:ident::$case:ident),* $(,)?])*) => {
        $(
            #[test]
            fn $test() {
                use outbox_core::conformance::internal as suite;
                $(
                    let run = || suite::$runner($make(Flaw::$flaw), suite::$module::$case);
                    let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
                    assert!(end.is_err(), "{} does not catch it", stringify!($case));
                )*
            }
        )*
    };
}
pub(crate) use caught;
