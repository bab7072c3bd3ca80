# To be sourced by bash or zsh: sets the variables by which programs and build files find the toolkit.

if [ -n "${BASH_VERSION:-}" ]; then
  ASCEND_HOME_PATH=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
elif [ -n "${ZSH_VERSION:-}" ]; then
  ASCEND_HOME_PATH=$(cd "$(dirname "${(%):-%x}")" && pwd)
else
  echo "set_env.sh: it must be sourced by bash or zsh, which tell it where it is" >&2
  return 1
fi
export ASCEND_HOME_PATH ASCEND_TOOLKIT_HOME=$ASCEND_HOME_PATH
export ASCEND_OPP_PATH=$ASCEND_HOME_PATH/opp
export LD_LIBRARY_PATH=$ASCEND_HOME_PATH/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export CMAKE_PREFIX_PATH=$ASCEND_HOME_PATH${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
# The published torch_npu enqueues operators by a thread of its own, which ends with the first that fails: what
# comes later is dropped without an error. Without that thread a failure is an exception of its call.
export TASK_QUEUE_ENABLE=${TASK_QUEUE_ENABLE:-0}
