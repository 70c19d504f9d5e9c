//! The table itself. A new switch is a row here, a test with the row's test name, and a line of
//! `docs/switches.md` (`cargo run -p switches --example page`).

use crate::row::{Alias, Class, Kind, State, Switch};

/// A variable that is known and never read.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    /// The variable.
    pub variable: &'static str,
    /// What to do instead.
    pub instead: &'static str,
}

/// A name of the reference engine under both of its prefixes.
macro_rules! both {
    ($tail:literal) => {
        &[
            Alias::Same(concat!("DFLASH_", $tail)),
            Alias::Same(concat!("LUCE_", $tail)),
        ]
    };
}

/// Switches of the prefill and device work: their kernels come later and bring the test.
const fn planned(
    name: &'static str,
    variable: &'static str,
    aliases: &'static [Alias],
    class: Class,
    kind: Kind,
    default: &'static str,
) -> Switch {
    Switch {
        name,
        variable,
        aliases,
        meaning: "",
        class,
        kind,
        default,
        eligible: "",
        kill: default,
        owner: "ds4-kernels",
        test: "",
        review: "2027-03-01",
        state: State::Planned,
        defects: &[],
    }
}

/// Every switch, by name.
pub const TABLE: &[Switch] = &[
    Switch {
        name: "cpu.isa",
        variable: "FOURSPARK_CPU_ISA",
        aliases: &[],
        meaning: "the widest vector instructions the CPU kernels may use",
        class: Class::Equal,
        kind: Kind::Word(&["auto", "baseline", "avx2", "avx512"]),
        default: "auto",
        eligible: "x86-64; a set that the processor lacks stops the start",
        kill: "baseline",
        owner: "crates/engine-core/src/math/cpu.rs",
        test: "c_15_every_instruction_set_gives_one_result",
        review: "2027-06-01",
        state: State::Live,
        defects: &[],
    },
    Switch {
        name: "device.check_load",
        variable: "FOURSPARK_DEVICE_CHECK_LOAD",
        aliases: &[],
        meaning: "whether all weights are read back from a device after they were sent, and compared byte by byte; a load then waits for as much again",
        class: Class::Equal,
        kind: Kind::Flag,
        default: "0",
        eligible: "with --device or --draft-device on cuda:N or hip:N; not in a draft worker",
        kill: "0",
        owner: "crates/server/src/cli/model.rs",
        test: "c_15_the_check_of_a_load_changes_no_answer",
        review: "2027-06-01",
        state: State::Live,
        defects: &[],
    },
    Switch {
        name: "device.early_launch",
        variable: "FOURSPARK_DEVICE_EARLY_LAUNCH",
        aliases: &[],
        meaning: "whether a kernel may start before the one ahead of it has ended (ADR 0012)",
        class: Class::Equal,
        kind: Kind::Flag,
        default: "1",
        eligible: "with --device cuda:N, where doctor says that the device has it",
        kill: "0",
        owner: "crates/server/src/cli/model.rs",
        test: "c_15_the_early_launch_switch_changes_no_answer",
        review: "2027-06-01",
        state: State::Live,
        defects: &[],
    },
    Switch {
        name: "device.graphs",
        variable: "FOURSPARK_DEVICE_GRAPHS",
        aliases: &[],
        meaning: "whether short passes on a device are captured once and replayed",
        class: Class::Equal,
        kind: Kind::Flag,
        default: "1",
        eligible: "with --device cuda:N or hip:N",
        kill: "0",
        owner: "crates/server/src/cli/model.rs",
        test: "c_15_the_graphs_switch_changes_no_answer",
        review: "2027-06-01",
        state: State::Live,
        defects: &[],
    },
    Switch {
        name: "draft.device",
        variable: "FOURSPARK_DRAFT_DEVICE",
        aliases: &[],
        meaning: "where the drafter's layers run: auto is same where they find room; --draft-device wins and names others",
        class: Class::Equal,
        kind: Kind::Word(&["auto", "same", "cpu"]),
        default: "auto",
        eligible: "with --draft or --draft-model",
        kill: "cpu",
        owner: "crates/server/src/cli/model.rs",
        test: "c_15_the_draft_device_switch_changes_no_answer",
        review: "2027-06-01",
        state: State::Live,
        defects: &[],
    },
    Switch {
        name: "draft.overlap",
        variable: "FOURSPARK_DRAFT_OVERLAP",
        aliases: &[],
        meaning: "whether a draft worker begins the next draft while the target verifies; --draft-overlap wins",
        class: Class::Equal,
        kind: Kind::Word(&["off", "on"]),
        default: "off",
        eligible: "with a draft worker",
        kill: "off",
        owner: "crates/server/src/cli/model.rs",
        test: "c_15_the_overlap_switch_changes_no_answer",
        review: "2027-06-01",
        state: State::Live,
        defects: &[],
    },
    Switch {
        name: "draft.transport",
        variable: "FOURSPARK_DRAFT_TRANSPORT",
        aliases: both!("DRAFT_IPC_TRANSPORT"),
        meaning: "how rows travel to a draft worker; --draft-transport wins",
        class: Class::Equal,
        kind: Kind::Word(&["auto", "shared", "stream"]),
        default: "auto",
        eligible: "with a draft worker",
        kill: "stream",
        owner: "crates/server/src/cli/model.rs",
        test: "c_15_the_worker_switches_start_a_worker",
        review: "2027-06-01",
        state: State::Live,
        defects: &[],
    },
    Switch {
        name: "draft.warm_up",
        variable: "FOURSPARK_DRAFT_WARM_UP",
        aliases: &[],
        meaning: "whether passes and drafts are measured before the first request, for a second at most",
        class: Class::Equal,
        kind: Kind::Flag,
        default: "1",
        eligible: "with a drafter, where widths go by measured costs",
        kill: "0",
        owner: "crates/server/src/cli/model.rs",
        test: "c_15_the_warm_up_switch_changes_no_answer",
        review: "2027-06-01",
        state: State::Live,
        defects: &[],
    },
    Switch {
        name: "draft.worker",
        variable: "FOURSPARK_DRAFT_WORKER",
        aliases: &[],
        meaning: "whether the drafter's layers run in a process of their own; --draft-worker wins",
        class: Class::Equal,
        kind: Kind::Word(&["off", "auto", "required"]),
        default: "off",
        eligible: "with --draft or --draft-model, on Linux",
        kill: "off",
        owner: "crates/server/src/cli/model.rs",
        test: "c_15_the_worker_switches_start_a_worker",
        review: "2027-06-01",
        state: State::Live,
        defects: &[],
    },
    Switch {
        name: "spec.draft",
        variable: "FOURSPARK_SPEC_DRAFT",
        aliases: &[],
        meaning: "whether a drafter that was asked for is loaded",
        class: Class::Equal,
        kind: Kind::Flag,
        default: "1",
        eligible: "with --draft or --draft-model",
        kill: "0",
        owner: "crates/server/src/cli/model.rs",
        test: "c_15_the_draft_switch_takes_the_drafter_out",
        review: "2027-06-01",
        state: State::Live,
        defects: &[],
    },
    Switch {
        meaning: "row ids of the indexer go straight to attention, without a mask",
        eligible: "ratio-4 layers with an indexer, at most 1,024 selected rows",
        test: "direct_topk_equals_the_mask",
        defects: &[4],
        ..planned(
            "prefill.direct_topk",
            "FOURSPARK_PREFILL_DIRECT_TOPK",
            both!("DS4_DIRECT_INDEXER_TOPK"),
            Class::Equal,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "streaming attention over the selected rows",
        eligible: "wave32 HIP, head width 512, heads a multiple of 8, more than one token",
        test: "stream_attention_near_the_reference",
        defects: &[4],
        ..planned(
            "prefill.mla_stream",
            "FOURSPARK_PREFILL_MLA_STREAM",
            &[
                Alias::Same("GGML_CUDA_MLA_STREAM_TOPK"),
                Alias::Same("GGML_DS4_FA_STREAM_TOPK"),
            ],
            Class::Near,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "F16 rows are widened once while they are staged",
        eligible: "with prefill.mla_stream, F16 rows",
        test: "stream_stage_near_the_reference",
        ..planned(
            "prefill.mla_stream_f32_stage",
            "FOURSPARK_PREFILL_MLA_STREAM_F32_STAGE",
            &[Alias::Same("GGML_CUDA_MLA_STREAM_F32_STAGE")],
            Class::Near,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "the hardware's exponential in the streaming softmax",
        eligible: "with prefill.mla_stream and prefill.mla_stream_f32_stage",
        test: "stream_exp_near_the_reference",
        ..planned(
            "prefill.mla_stream_fast_exp",
            "FOURSPARK_PREFILL_MLA_STREAM_FAST_EXP",
            &[Alias::Same("GGML_CUDA_MLA_STREAM_FAST_EXP")],
            Class::Near,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "the width of an output tile follows from the routed rows of an expert",
        eligible: "gfx1151, grouped expert products, FP2, FP3 or FP4",
        test: "adaptive_tiles_are_equal",
        ..planned(
            "prefill.moe_adaptive_x",
            "FOURSPARK_PREFILL_MOE_ADAPTIVE_X",
            &[Alias::Same("GGML_CUDA_MMQ_MOE_ADAPTIVE_X")],
            Class::Equal,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "persistent workers take tiles of experts that have rows",
        eligible: "as prefill.moe_adaptive_x, at least 256 tokens",
        test: "persistent_tiles_are_equal",
        ..planned(
            "prefill.moe_persistent",
            "FOURSPARK_PREFILL_MOE_PERSISTENT",
            &[Alias::Same("GGML_CUDA_MMQ_MOE_PERSISTENT")],
            Class::Equal,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "persistent workers of a compute unit",
        eligible: "with prefill.moe_persistent",
        test: "persistent_tiles_are_equal",
        ..planned(
            "prefill.moe_persistent_blocks",
            "FOURSPARK_PREFILL_MOE_PERSISTENT_BLOCKS",
            &[Alias::Same("GGML_CUDA_MMQ_MOE_PERSISTENT_BLOCKS_PER_CU")],
            Class::Equal,
            Kind::Count(1, 32),
            "32",
        )
    },
    Switch {
        meaning: "most tokens of a prompt in one pass while prompts are long, 0 for the engine's own",
        eligible: "heterogeneous placements; the reference engine's hybrid cap, not its chunk",
        test: "hybrid_chunks_are_equal",
        ..planned(
            "prefill.hybrid_long_chunk",
            "FOURSPARK_PREFILL_HYBRID_LONG_CHUNK",
            both!("DS4_LONG_CONTEXT_CHUNK"),
            Class::Equal,
            Kind::Count(0, 65_536),
            "0",
        )
    },
    Switch {
        meaning: "matrix units for products of mixed ROCmFPX types in prompts",
        eligible: "HIP, MIX types with their tables",
        test: "mix_products_near_the_reference",
        defects: &[7],
        ..planned(
            "prefill.mix_mmq",
            "FOURSPARK_PREFILL_MIX_MMQ",
            both!("DS4_MIX_MMQ_PREFILL"),
            Class::Near,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "one kernel for weights and sum over the slots of an expert layer",
        eligible: "slots contiguous",
        test: "fused_combine_is_equal",
        ..planned(
            "moe.fused_combine",
            "FOURSPARK_MOE_FUSED_COMBINE",
            both!("MOE_FUSED_COMBINE"),
            Class::Equal,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "loads of four values in moe.fused_combine",
        eligible: "with moe.fused_combine, rows aligned to 16 bytes",
        test: "fused_combine_is_equal",
        ..planned(
            "moe.combine_vec4",
            "FOURSPARK_MOE_COMBINE_VEC4",
            both!("MOE_COMBINE_VEC4"),
            Class::Equal,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "vector kernel for hyper-connections of four rows",
        eligible: "gfx1151 by its exact name",
        test: "hc_rows_near_the_reference",
        defects: &[6],
        ..planned(
            "hc.mmvf_q4",
            "FOURSPARK_HC_MMVF_Q4",
            both!("GFX1151_HC_MMVF_Q4"),
            Class::Near,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "the verifier's mask is cleared on the device and only its negative ranges written",
        eligible: "spans shorter than the window",
        test: "incremental_mask_is_equal",
        defects: &[5],
        ..planned(
            "verify.incremental_mask",
            "FOURSPARK_VERIFY_INCREMENTAL_MASK",
            both!("DS4_INCREMENTAL_VERIFY_MASK"),
            Class::Equal,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "smallest mask for verify.incremental_mask, bytes",
        eligible: "with verify.incremental_mask",
        test: "incremental_mask_is_equal",
        ..planned(
            "verify.incremental_mask_min_bytes",
            "FOURSPARK_VERIFY_INCREMENTAL_MASK_MIN_BYTES",
            both!("DS4_INCREMENTAL_VERIFY_MASK_MIN_BYTES"),
            Class::Equal,
            Kind::Count(0, 1 << 40),
            "4194304",
        )
    },
    Switch {
        meaning: "two-stage radix selection instead of a full sort",
        eligible: "512 selected rows",
        test: "radix_selection_is_equal",
        ..planned(
            "select.block_radix",
            "FOURSPARK_SELECT_BLOCK_RADIX",
            &[Alias::Same("GGML_DS4_TOPK_BLOCK_RADIX")],
            Class::Equal,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "the selected rows of one token are split over blocks and merged",
        eligible: "decode of at most 8 rows",
        test: "split_rows_near_the_reference",
        ..planned(
            "decode.split_kv",
            "FOURSPARK_DECODE_SPLIT_KV",
            &[
                Alias::Same("GGML_CUDA_MLA_SPLIT_KV"),
                Alias::Inverted("GGML_CUDA_MLA_NO_SPLIT_KV"),
            ],
            Class::Near,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "the verifier attends to the model's selected rows only",
        eligible: "one HIP device",
        test: "sparse_verify_is_labelled",
        defects: &[4],
        ..planned(
            "verify.sparse_flash",
            "FOURSPARK_VERIFY_SPARSE_FLASH",
            both!("DS4_SPARSE_DECODE_FLASH"),
            Class::Approx,
            Kind::Flag,
            "0",
        )
    },
    Switch {
        meaning: "routed experts of a token, 0 for the model's own number",
        eligible: "any",
        test: "expert_top_k_is_labelled",
        ..planned(
            "model.expert_top_k",
            "FOURSPARK_MODEL_EXPERT_TOP_K",
            both!("DS4_EXPERT_TOP_K"),
            Class::Approx,
            Kind::Count(0, 64),
            "0",
        )
    },
];

const DRAFTER: &str = "choose a drafter with --draft or --draft-model FILE";
const PAYLOAD: &str = "the size of the shared memory follows from the drafter; see --draft-worker";
const DRIVER: &str = "a driver library is opened by its own name; there are no backend modules";

/// Variables that are known and have no row: refused, whatever their value.
pub const REFUSED: &[Refused] = &[
    refused("DFLASH_DS4_DRAFT_BACKEND", DRAFTER),
    refused("LUCE_DS4_DRAFT_BACKEND", DRAFTER),
    refused("DFLASH_DRAFT_IPC_SHARED_BYTES", PAYLOAD),
    refused("LUCE_DRAFT_IPC_SHARED_BYTES", PAYLOAD),
    refused("DFLASH_CUDA_BACKEND_PATH", DRIVER),
    refused("LUCE_CUDA_BACKEND_PATH", DRIVER),
    refused("DFLASH_HIP_BACKEND_PATH", DRIVER),
    refused("LUCE_HIP_BACKEND_PATH", DRIVER),
    refused(
        "GGML_DS4_FA_SERIAL_INDEX_SCAN",
        "there is no second path to compare with; `cargo xtask qualify run --profile one-result` compares",
    ),
    refused(
        "GGML_ROCMFP4_UNALIGNED_QS_DWORD_LOAD",
        "loads are chosen by the kernel; there is nothing to switch",
    ),
    refused(
        "FOURSPARK_MUTANT",
        "planted faults exist in test builds only (feature `mutants`)",
    ),
];

const fn refused(variable: &'static str, instead: &'static str) -> Refused {
    Refused { variable, instead }
}
