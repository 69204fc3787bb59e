#!/usr/bin/env bash
# Predictions in many files, scored by the tasks of a SLURM array that know nothing of each other:
#
#     mkdir -p parts
#     job=$(sbatch --parsable --array=0-7 examples/slurm_array.sh score "shards/*.h5ad")
#     sbatch --dependency=afterok:$job examples/slurm_array.sh merge
#
# Every task reads its share of the files, one at a time, and writes a state into parts/. The last job makes one result
# of them, which is that of a single process. A task that failed is run again by itself.
#SBATCH --cpus-per-task=2
#SBATCH --mem=8G
set -euo pipefail

task="${TASK:-cell_type_annotation}"
parts="${PARTS:-parts}"

case "$1" in
score)
    share=()
    number=0
    for file in $2; do
        if ((number++ % SLURM_ARRAY_TASK_COUNT == SLURM_ARRAY_TASK_ID)); then share+=("$file"); fi
    done
    if ((${#share[@]})); then
        prima-bench evaluate --task "$task" --model "${MODEL:-my model}" \
            --output "$parts/part-$SLURM_ARRAY_TASK_ID.pbstate" "${share[@]}"
    fi
    ;;
merge)
    prima-bench merge "$parts/part-*.pbstate" --output "${OUTPUT:-result.json}"
    ;;
esac
